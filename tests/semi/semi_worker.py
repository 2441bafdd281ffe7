"""What every process of the semi-supervised distributed tests runs; as a script, one process: FOLDER.

Without torch.distributed the same functions give the reference on whole batches.
"""

from __future__ import annotations

import os
import sys
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from semi_helpers import labelled, objective_for, student, unlabelled
from torch import nn

from isda.lab.methods.semi import UnlabelledBatch

STEPS, EPOCH = 6, 2
# Equal to one process: without batch normalisation, whose statistics are those of a process's own part of the batch,
# and without VAT, which starts from random directions. The others are at least the same on all processes.
EXACT = ("mean-teacher+isda", "temporal-ensembling+isda", "pi-model+isda")
SAME = ("mean-teacher", "temporal-ensembling", "vat+isda")
CASES = [(name, False) for name in EXACT] + [(name, True) for name in SAME]


def part_of(view: UnlabelledBatch, rank: int, world: int) -> UnlabelledBatch:
    parts = ((field.name, getattr(view, field.name)) for field in fields(view))
    return UnlabelledBatch(**{name: part.chunk(world)[rank] for name, part in parts if part is not None})


def train(name: str, norm: bool, rank: int, world: int) -> dict[str, Any]:
    """A few steps on this process's part of each batch; gradients are averaged."""
    network = student(norm=norm, dropout=0.0)
    objective = objective_for(name, network, input_noise=0.0)
    # Several passes per step: nobody may overwrite buffers between them.
    wrapped = nn.parallel.DistributedDataParallel(network, broadcast_buffers=False) if world > 1 else network
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1)
    within = None
    for step in range(STEPS):
        images, targets = labelled(size=8, seed=step)
        torch.manual_seed(step)
        terms, _ = objective(
            wrapped,
            images.chunk(world)[rank],
            targets.chunk(world)[rank],
            part_of(unlabelled(8, seed=step), rank, world),
        )
        optimiser.zero_grad()
        sum(terms.values()).backward()
        optimiser.step()
        objective.after_step(wrapped)
        if step == EPOCH:  # in the middle of an epoch, where a checkpoint may be written by any process
            within = {name: value.clone() for name, value in objective.state_dict().items()}
        if step % EPOCH == EPOCH - 1:
            objective.after_epoch()
    return {"network": network.state_dict(), "objective": objective.state_dict(), "within": within}


def main(folder: Path) -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'rendezvous'}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=90),
    )
    torch.save({(name, norm): train(name, norm, rank, world) for name, norm in CASES}, folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
