"""Two processes of fastai on the CPU; each leaves its weights and statistics in the folder that is given.

fastai agrees on the order of samples by a tensor in CUDA's memory; here it is one in the host's. All else is its own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.multiprocessing
from fastai.data.load import DataLoader
from fastai.distributed import DistributedDL  # also adds distrib_ctx to Learner
from fastai_runs import EPOCHS, learner, samples
from plain_training import LAMBDA_0

from isda.integrations.fastai import ISDACallback


def broadcast_on_the_host(self: DistributedDL, order: list[int], rank: int) -> list[int]:
    """What DistributedDL._broadcast does."""
    agreed = torch.LongTensor(order)
    torch.distributed.broadcast(agreed, rank)
    return agreed.tolist()


def train(rank: int, folder: Path) -> None:
    """One of the processes."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    DistributedDL._broadcast = broadcast_on_the_host
    x, y = samples(24)
    data = DataLoader(list(zip(x, y, strict=True)), bs=3, num_workers=0)
    learn = learner(ISDACallback(LAMBDA_0), data=data)
    learn.dls.loaders[1] = data
    with learn.distrib_ctx(sync_bn=False, cpu=True):
        learn.fit(EPOCHS)
    criterion = learn.isda.criterion
    found = {"model": learn.model.state_dict(), "statistics": criterion.state_dict()}
    torch.save(found | {"total_steps": criterion.total_steps}, folder / f"{rank}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ["MASTER_PORT"] = str(free.getsockname()[1])
    torch.multiprocessing.start_processes(train, args=(Path(sys.argv[1]),), nprocs=2, start_method="fork")
