"""A small problem in a module of Lightning, as the plain loop has it, and a quiet Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from plain_training import MOMENTUM, RATE, network
from torch import nn

EPOCHS, COUNT, BATCH, BATCHES = 3, 27, 4, 7


class Classifier(pl.LightningModule):
    """What a user has: it knows nothing of isda."""

    def __init__(self, criterion: nn.Module | None = None) -> None:
        super().__init__()
        self.network, self.criterion, self.rate = network(), criterion or nn.CrossEntropyLoss(), RATE
        self.validated: list[tuple[torch.Tensor, torch.Tensor]] = []

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        return self.criterion(self.network(batch[0]), batch[1])

    def validation_step(self, batch: Any, index: int) -> None:
        logits = self.network(batch[0])
        self.validated.append((self.criterion(logits, batch[1]), F.cross_entropy(logits, batch[1])))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.rate, momentum=MOMENTUM)


class Interruption(pl.Callback):
    """The power fails when the epoch begins."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_train_epoch_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if trainer.current_epoch == self.epoch:
            raise OSError("the power failed")


def trainer(*callbacks: pl.Callback, folder: Path | None = None, **settings: Any) -> pl.Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    checkpoints = folder is not None
    settings = {"max_epochs": EPOCHS, "accelerator": "cpu", "enable_checkpointing": checkpoints, **quiet, **settings}
    return pl.Trainer(callbacks=list(callbacks), default_root_dir=folder, **settings)
