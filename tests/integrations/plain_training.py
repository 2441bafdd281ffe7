"""What tests of training libraries share: a small problem, and the same training written as a plain loop."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from isda import ISDALoss
from isda.criterion import AugmentedLoss

CLASSES, LAMBDA_0, RATE, MOMENTUM = 3, 4.0, 0.1, 0.9
EPOCHS, COUNT, BATCH, BATCHES = 3, 27, 4, 7
TOLERANCE = 1e-4
"""Float32 rounds to 6e-8, and 21 steps with momentum multiply a difference; other mathematics differs by 1e-2."""


def network() -> nn.Sequential:
    """The same weights every time."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def samples(count: int = COUNT, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Points of three classes that overlap."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(CLASSES, (count,), generator=generator)
    centres = torch.randn(CLASSES, 6, generator=generator)
    return centres[targets] + torch.randn(count, 6, generator=generator), targets


def loader(count: int = COUNT, batch_size: int = BATCH, seed: int = 0) -> DataLoader:
    """Batches in a fixed order, the last one smaller where they do not come out even."""
    return DataLoader(TensorDataset(*samples(count, seed)), batch_size=batch_size)


def train_by_hand(
    data: DataLoader | None = None,
    accumulate: int = 1,
    epochs: int = EPOCHS,
    kind: type[AugmentedLoss] = ISDALoss,
    total_steps: int | None = None,
    **settings: object,
) -> tuple[nn.Module, AugmentedLoss]:
    """A plain loop: the optimizer steps after so many batches and at the end of an epoch, on means over so many."""
    model, batches = network(), list(data or loader())
    settings = {"lambda_0": LAMBDA_0, "total_steps": total_steps or EPOCHS * len(batches), **settings}
    criterion = kind.attach(model, **settings)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    for _ in range(epochs):
        for index, (x, y) in enumerate(batches, 1):
            (criterion(model(x), y) / accumulate).backward()
            if index % accumulate == 0 or index == len(batches):
                optimizer.step()
                optimizer.zero_grad()
    criterion.detach()
    return model, criterion


def difference(one: nn.Module, other: nn.Module) -> float:
    """The largest difference between the states of two modules; relative for numbers above 1."""
    states = one.state_dict(), other.state_dict()
    assert states[0].keys() == states[1].keys()
    pairs = [(states[0][name].double(), states[1][name].double()) for name in states[0]]
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1)) for a, b in pairs)
