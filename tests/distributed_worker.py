"""What every process of test_distributed.py runs; as a script: FOLDER. One process gives the reference."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from isda import ISDABCELoss, ISDALoss, covariance
from loss_cases import ONLINE, integers, normal

C, A, IGNORED = 4, 5, -100


def rows_of_step(step: int, rank: int, world: int) -> tuple[Tensor, Tensor]:
    """The rows of one process, of all if there is one: sorted by class at first, so that each sees but some; a third
    ignored in the second step; none for the first process in the last one."""
    features, targets = normal(24, A, seed=step) + 2, integers(C, 24, seed=10 + step)
    if step == 0:
        targets = targets.sort().values
    if step == 1:
        targets[:8] = IGNORED
    first = 0 if step == 2 else 7
    mine = {(0, 1): slice(None), (0, 2): slice(0, first), (1, 2): slice(first, None)}[rank, world]
    return features[mine], targets[mine]


def statistics(kind: str, place: tuple[int, int], **settings: Any) -> dict[str, Tensor]:
    """The state after three updates."""
    model = covariance.create(kind, C, A, dtype=torch.float64, **settings)
    for step in range(3):
        features, targets = rows_of_step(step, *place)
        model.update(features, targets, targets != IGNORED)
    sigmas = torch.stack([model.covariance(c) for c in range(C)])
    return {"count": model.count, "mean": model.mean, "sigmas": sigmas}


def train(bound: str, rank: int, world: int) -> dict[str, Any]:
    """Some steps of DistributedDataParallel; batches are halved, so that gradients are those of the whole batch."""
    torch.manual_seed(1)
    model: nn.Module = nn.Sequential(nn.Linear(3, A), nn.Tanh(), nn.Linear(A, C)).double()
    model = nn.parallel.DistributedDataParallel(model) if world > 1 else model
    kind, settings = (ISDABCELoss, {}) if bound == "binary" else (ISDALoss, {"bound": bound})
    criterion = kind.attach(model, 1.0, 4, **settings)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.2), []
    for step in range(4):
        x, y = normal(12, 3, seed=step), integers(C, 12, seed=20 + step)
        targets = nn.functional.one_hot(y, C).double() if bound == "binary" else y
        mine = slice(None) if world == 1 else slice(6 * rank, 6 * rank + 6)
        loss = criterion(model(x[mine]), targets[mine])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return {"parameters": [p.detach() for p in model.parameters()], "losses": torch.stack(losses),
            "state": criterion.state_dict()}  # fmt: skip


def sharded_weight(rank: int) -> list[Tensor]:
    """Gradients of a weight that is a DTensor, and of an ordinary one."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh, gradients = init_device_mesh("cpu", (2,)), []
    start, features, targets = normal(C, A, seed=1), normal(8, A, seed=2), integers(C, 8, seed=3)
    for placement in (None, Shard(0), Shard(1), Replicate()):
        weight = nn.Parameter(start.clone() if placement is None else distribute_tensor(start, mesh, [placement]))
        criterion = ISDALoss(C, A, dtype=torch.float64, sync=False)
        criterion(features @ start.t(), targets, features=features, weight=weight, strength=1.0).backward()
        gradients.append(weight.grad if placement is None else weight.grad.full_tensor())
    return gradients


def groups(rank: int) -> list[Tensor]:
    """Counts of models whose processes are each for itself, in two ways; together; and by a criterion."""
    alone = [dist.new_group([0]), dist.new_group([1])][rank]
    features, targets = normal(4 + rank, A, seed=rank), integers(C, 4 + rank, seed=rank)
    counts = []
    for settings in ({"process_group": alone}, {"sync": False}, {}):
        for kind in ("full", "identity", "low_rank"):
            model = covariance.create(kind, C, A, dtype=torch.float64, **settings)
            model.update(features, targets)
            counts.append(model.count)
        weight = normal(C, A, seed=5)
        criterion = ISDALoss(C, A, 0.5, 4, dtype=torch.float64, **settings)
        criterion(features @ weight.t(), targets, features=features, weight=weight)
        counts.append(criterion.covariance.count)
    return counts


def every_result(rank: int, world: int) -> dict[str, Any]:
    """All cases."""
    found: dict[str, Any] = {}
    for kind in ONLINE:
        settings = {"rank": 30} if kind == "low_rank" else {}
        found[kind] = statistics(kind, (rank, world), **settings)
    found["memory"] = statistics("full", (rank, world), memory=3)
    for bound in ("jensen", "tilted", "binary"):
        found[f"train {bound}"] = train(bound, rank, world)
    if world > 1:
        found["groups"] = groups(rank)
        found["sharded"] = sharded_weight(rank)
    return found


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.save(every_result(dist.get_rank(), dist.get_world_size()), Path(sys.argv[1]) / f"{dist.get_rank()}.pt")
    dist.barrier()
    dist.destroy_process_group()
