"""Two processes of Lightning; each leaves its weights and statistics in the folder that is given."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from lightning.pytorch import Callback
from lightning_runs import EPOCHS, Classifier, trainer
from plain_training import LAMBDA_0, samples
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from isda.integrations.lightning import ISDACallback


class Keep(Callback):
    """Writes down what a process ends with."""

    def __init__(self, folder: Path, isda: ISDACallback) -> None:
        self.folder, self.isda = folder, isda

    def on_train_end(self, trainer, module) -> None:
        criterion = self.isda.criterion
        found = {"model": module.network.state_dict(), "statistics": criterion.state_dict()}
        torch.save(found | {"total_steps": criterion.total_steps}, self.folder / f"{trainer.global_rank}.pt")


class InOrder(Classifier):
    """Lightning's own sampler would shuffle."""

    def train_dataloader(self) -> DataLoader:
        data = TensorDataset(*samples(30))
        mine = DistributedSampler(data, 2, self.trainer.global_rank, shuffle=False)
        return DataLoader(data, batch_size=3, sampler=mine)


if __name__ == "__main__":
    isda = ISDACallback(lambda_0=LAMBDA_0)
    keep = Keep(Path(sys.argv[1]), isda)
    processes = {"devices": 2, "strategy": "ddp_fork", "use_distributed_sampler": False}
    trainer(isda, keep, accumulate_grad_batches=2, max_epochs=EPOCHS, **processes).fit(InOrder())
