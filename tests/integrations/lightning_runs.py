"""A small problem in a module of Lightning, as the plain loop has it, and a quiet Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from plain_training import EPOCHS, MOMENTUM, RATE, loader, network
from torch import Tensor, nn


class Classifier(pl.LightningModule):
    """What a user has: it knows nothing of isda."""

    def __init__(self, criterion: Any = F.cross_entropy) -> None:
        super().__init__()
        self.network, self.criterion = network(), criterion
        self.validated: list[tuple[Tensor, Tensor]] = []

    def training_step(self, batch: Any, index: int) -> Tensor:
        return self.criterion(self.network(batch[0]), batch[1])

    def validation_step(self, batch: Any, index: int) -> None:
        logits = self.network(batch[0])
        self.validated.append((self.criterion(logits, batch[1]), nn.functional.cross_entropy(logits, batch[1])))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=RATE, momentum=MOMENTUM)


def fit(module: Any, *callbacks: Any, data: Any = None, validation: Any = None, **settings: Any) -> pl.Trainer:
    """Train in the Trainer of Lightning; ``ckpt_path`` resumes."""
    resume = {name: settings.pop(name) for name in ("ckpt_path", "weights_only") if name in settings}
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    off = {"logger": False, "enable_checkpointing": False, "max_epochs": EPOCHS}
    trainer = pl.Trainer(callbacks=list(callbacks), **{**quiet, **off, **settings})
    trainer.fit(module, loader() if data is None else data, validation, **resume)
    return trainer


class Interruption(pl.Callback):
    """The power fails when the epoch begins."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_train_epoch_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if trainer.current_epoch == self.epoch:
            raise OSError("the power failed")


def folder_of(folder: Path) -> dict[str, Any]:
    return {"default_root_dir": folder, "enable_checkpointing": True}
