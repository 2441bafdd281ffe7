"""How much longer a training step takes with ISDA, measured: the wall-time columns of the paper's Tables 1 and 3.

Steps with cross-entropy and with ISDA take turns on the same network and batch, so that whatever else the machine does
strikes both alike; the figure is the median of their ratios.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from isda.devices import on_host
from isda.losses import ISDALoss
from isda.networks import Network, create
from isda.paper.cost_table import Cell, Row
from isda.paper.costs import paper_costs

__all__ = ["additional_time", "with_times"]

SETS = {"cifar": (("cifar10", 10), ("cifar100", 100)), "imagenet": (("imagenet", 1000),)}
WARM_UP = 1
"""Turns that are not counted: the first ones allocate memory and choose algorithms."""


def with_times(row: Row, device: torch.device, steps: int = 5, batch_size: int | None = None) -> Row:
    """The row with a further cell for each data set: the time that ISDA adds to a training step, in percent.

    Args:
        row: of a network.
        device: where to measure.
        steps: turns that are counted.
        batch_size: instead of the paper's.
    """
    paper = paper_costs().get(row.name)
    cells = dict(row.cells)
    for data, classes in SETS[row.dataset]:
        key = f"additional_{data}_wall_time"
        network = create(row.name, num_classes=classes).to(device)
        size = batch_size or row.batch_size
        covariance = "full" if row.dataset == "cifar" else "diagonal"
        added = additional_time(network, row.input_shape, size, device, steps, covariance)
        cells[key] = Cell(added, paper.printed.get(key) if paper else None)
    return replace(row, batch_size=batch_size or row.batch_size, cells=cells)


def additional_time(
    network: Network,
    input_shape: tuple[int, int, int],
    batch_size: int,
    device: torch.device,
    steps: int = 5,
    covariance: str = "full",
) -> float:
    """The time that ISDA (published bound) adds to a training step of a network, in percent of the step without.

    Args:
        network: on the device; its weights are changed.
        input_shape: (C, H, W).
        batch_size: N.
        device: where to measure.
        steps: turns that are counted.
        covariance: the model of ISDA.
    """
    classes, dim = network.classifier.weight.shape
    optimiser = torch.optim.SGD(network.parameters(), lr=1e-4, momentum=0.9)
    criterion = ISDALoss(classes, dim, 0.5, total_steps=1000, covariance=covariance).to(device)
    images = torch.randn(batch_size, *input_shape, device=device)
    targets = torch.randint(classes, (batch_size,), device=device)

    def plain() -> Tensor:
        return F.cross_entropy(network(images), targets)

    def semantic() -> Tensor:
        features = network.features(images)
        head = network.classifier
        loss: Tensor = criterion(head(features), targets, features=features, weight=head.weight)
        return loss

    def seconds(loss: Callable[[], Tensor]) -> float:
        _wait(device)
        started = time.perf_counter()
        loss().backward()
        optimiser.step()
        optimiser.zero_grad()
        _wait(device)
        return time.perf_counter() - started

    network.train()
    turns = [(seconds(plain), seconds(semantic)) for _ in range(WARM_UP + steps)]
    ratios = [ours / base for base, ours in turns]
    return 100 * (statistics.median(ratios[WARM_UP:]) - 1)


def _wait(device: torch.device) -> None:
    if not on_host(device):
        torch.get_device_module(device).synchronize(device)
