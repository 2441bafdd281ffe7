"""What tests of training libraries share: a small problem, and the same training written as a plain loop."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from isda import ISDALoss
from isda.losses import AugmentedLoss

CLASSES, LAMBDA_0, RATE, MOMENTUM = 3, 4.0, 0.1, 0.9


def network(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """The same weights every time."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, CLASSES)).to(dtype)


def samples(count: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Points of three classes that overlap."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(CLASSES, (count,), generator=generator)
    centres = torch.randn(CLASSES, 6, generator=generator, dtype=torch.float64)
    return (centres[targets] + torch.randn(count, 6, generator=generator, dtype=torch.float64)).to(dtype), targets


def loader(count: int, batch_size: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> DataLoader:
    """Batches in a fixed order, the last one smaller where they do not come out even."""
    return DataLoader(TensorDataset(*samples(count, seed, dtype)), batch_size=batch_size)


def train_by_hand(
    model: nn.Module,
    batches: list[tuple[Tensor, Tensor]],
    ends: set[int],
    total_steps: int,
    *,
    share: float = 1.0,
    kind: type[AugmentedLoss] = ISDALoss,
    **settings: object,
) -> AugmentedLoss:
    """A plain loop: the optimiser steps after the batches numbered ``ends``, on gradients times ``share``."""
    criterion = kind.attach(model, total_steps=total_steps, **{"lambda_0": LAMBDA_0, **settings})
    criterion.set_step(0)
    optimiser = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    done = 0
    for index, (x, y) in enumerate(batches):
        (criterion(model(x), y) * share).backward()
        if index in ends:
            optimiser.step()
            optimiser.zero_grad()
            done += 1
            criterion.set_step(done)
    criterion.detach()
    return criterion


def difference(one: nn.Module, other: nn.Module) -> float:
    """The largest difference between the states of two modules, buffers included; relative for numbers above 1."""
    states = one.state_dict(), other.state_dict()
    assert states[0].keys() == states[1].keys()
    pairs = [(states[0][name].double(), states[1][name].double()) for name in states[0]]
    return max(float((a - b).abs().max() / b.abs().max().clamp_min(1)) for a, b in pairs)


def train_automatically(
    model: nn.Module, batches: list[tuple[Tensor, Tensor]], epochs: int, held_out: tuple[Tensor, Tensor]
) -> tuple[ISDALoss, list[float]]:
    """A plain loop with lambda_0="auto": one match per epoch. The criterion, and the strength after each epoch."""
    criterion = ISDALoss.attach(model, "auto")
    optimiser = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    strengths = []
    for _ in range(epochs):
        for x, y in batches:
            criterion(model(x), y).backward()
            optimiser.step()
            optimiser.zero_grad()
        with torch.no_grad():
            strengths.append(criterion.match(model.eval()(held_out[0]), held_out[1]))
        model.train()
    criterion.detach()
    return criterion, strengths
