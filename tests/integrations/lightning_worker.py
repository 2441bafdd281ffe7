"""Two processes of Lightning; each leaves its weights and statistics in folders of the one that is given."""

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
        self.folder.mkdir(exist_ok=True)
        torch.save(found | {"total_steps": criterion.total_steps}, self.folder / f"{trainer.global_rank}.pt")


class InOrder(Classifier):
    """Lightning's own sampler would shuffle."""

    def train_dataloader(self) -> DataLoader:
        data = TensorDataset(*samples(30))
        mine = DistributedSampler(data, 2, self.trainer.global_rank, shuffle=False)
        return DataLoader(data, batch_size=3, sampler=mine)


if __name__ == "__main__":
    held_out = DataLoader(TensorDataset(*samples(11, seed=1)), batch_size=4)
    for name, lambda_0, validation in (("number", LAMBDA_0, None), ("auto", "auto", held_out)):
        isda = ISDACallback(lambda_0=lambda_0)
        keep = Keep(Path(sys.argv[1], name), isda)
        processes = {"devices": 2, "strategy": "ddp_fork", "use_distributed_sampler": False}
        fitted = trainer(isda, keep, accumulate_grad_batches=2, max_epochs=EPOCHS, **processes)
        fitted.fit(InOrder(), val_dataloaders=validation)
