"""Two processes that train by each library, as a script: FOLDER, where each leaves what it ended with."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing
from accelerate import Accelerator
from lightning_runs import Classifier, fit
from plain_training import EPOCHS, LAMBDA_0, MOMENTUM, RATE, network, samples
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from transformers import Trainer, TrainingArguments

from isda import ISDALoss
from isda.integrations.accelerate import prepare_criterion
from isda.integrations.huggingface import ISDATraining
from isda.integrations.lightning import ISDACallback

COUNT, EACH = 24, 3


def own_rows(rank: int) -> DataLoader:
    """Every other row: two processes see together the batches of one with twice the size."""
    data = TensorDataset(*samples(COUNT))
    return DataLoader(data, batch_size=EACH, sampler=DistributedSampler(data, 2, rank, shuffle=False))


def by_accelerate(rank: int, folder: Path) -> tuple[torch.nn.Module, ISDALoss]:
    """A loop that is interrupted after two epochs, and resumed."""
    for epochs, load in ((2, False), (1, True)):
        accelerator = Accelerator(cpu=True)
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
        model, optimizer = accelerator.prepare(model, optimizer)
        data = own_rows(rank)
        criterion = prepare_criterion(accelerator, ISDALoss.attach(model, LAMBDA_0, EPOCHS * len(data)))
        if load:
            accelerator.load_state(str(folder / "state"))
        for _ in range(epochs):
            for x, y in data:
                accelerator.backward(criterion(model(x), y))
                optimizer.step()
                optimizer.zero_grad()
        accelerator.save_state(str(folder / "state"))
        accelerator.wait_for_everyone()
    return accelerator.unwrap_model(model), criterion


def by_lightning(rank: int, folder: Path) -> tuple[torch.nn.Module, ISDALoss]:
    """Accumulated gradients are those of the plain loop with accumulate=2."""
    module, isda = Classifier(), ISDACallback(LAMBDA_0)
    processes = {"devices": 2, "strategy": "ddp", "use_distributed_sampler": False}
    fit(module, isda, data=own_rows(rank), accumulate_grad_batches=2, **processes)
    return module.network, isda.criterion


class Logits(torch.nn.Module):
    """A model as Trainer calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": self.network(x)}


def by_huggingface(rank: int, folder: Path) -> tuple[torch.nn.Module, ISDALoss]:
    """Trainer gives each process its batches in turn."""
    data = [{"x": x, "labels": y} for x, y in zip(*samples(COUNT), strict=True)]
    quiet = {"report_to": [], "disable_tqdm": True, "save_strategy": "no", "use_cpu": True, "optim": "sgd"}
    rate = {"learning_rate": RATE, "lr_scheduler_type": "constant", "max_grad_norm": 0.0}
    isda = ISDATraining(LAMBDA_0)
    order = {"train_sampling_strategy": "sequential", "remove_unused_columns": False}
    length = {"per_device_train_batch_size": EACH, "num_train_epochs": EPOCHS}
    args = TrainingArguments(str(folder), optim_args=f"momentum={MOMENTUM}", **order, **length, **quiet, **rate)
    trainer = Trainer(Logits(), args, train_dataset=data, compute_loss_func=isda.loss, callbacks=[isda])
    trainer.train()
    return trainer.model.network, isda.criterion


def train(rank: int, folder: Path, port: int) -> None:
    """One of the processes."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": port}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", **{name: str(number) for name, number in numbers.items()}}
    torch.set_num_threads(1)
    ended = {}
    for run in (by_accelerate, by_lightning, by_huggingface):
        model, criterion = run(rank, folder)
        ended[run.__name__.removeprefix("by_")] = {
            "model": model.state_dict(),
            "criterion": criterion.state_dict(),
            "strength": criterion.strength,
        }
        dist.barrier()
    torch.save(ended, folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = free.getsockname()[1]
    torch.multiprocessing.start_processes(train, args=(Path(sys.argv[1]), address), nprocs=2, start_method="fork")
