"""Small networks, and the same loss with features and weight passed by hand, for the tests of attach."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from isda import ISDALoss

CLASSES, FEATURES = 3, 8


class SmallNet(nn.Module):
    """Two layers; ``fc`` is the classifier."""

    def __init__(self, head: nn.Module | None = None) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, FEATURES), nn.ReLU())
        self.fc = nn.Linear(FEATURES, CLASSES) if head is None else head

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.body(x))


def batch(size: int = 12, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs (N, 4) and labels that depend on them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 4, generator=generator)
    return x, x[:, :CLASSES].argmax(1)


@contextmanager
def spy(head: nn.Module) -> Iterator[list[Tensor]]:
    """The inputs of every pass of ``head``, seen by a hook that is not isda's."""
    seen: list[Tensor] = []
    handle = head.register_forward_pre_hook(lambda module, args: seen.append(args[0].detach().clone()))
    try:
        yield seen
    finally:
        handle.remove()


def twin(criterion: ISDALoss, **settings: object) -> ISDALoss:
    """A criterion of the same sizes and strength that is attached to nothing."""
    schedule, covariance = criterion.schedule, criterion.covariance
    return ISDALoss(
        criterion.num_classes,
        criterion.feature_dim,
        schedule.lambda_0,
        schedule.total_steps,
        schedule=schedule.kind,
        ignore_index=criterion.ignore_index,
        dtype=covariance.dtype,
        **settings,
    )


def assert_same_state(left: nn.Module, right: nn.Module) -> None:
    """Equal state_dicts, to the bit."""
    ours, theirs = left.state_dict(), right.state_dict()
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert torch.equal(value, theirs[name]), name


def train(parameters: Iterator[nn.Parameter], loss_of: Callable[[], Tensor], steps: int, lr: float) -> list[float]:
    """The losses of a few steps of Adam."""
    optimiser = torch.optim.Adam(parameters, lr=lr)
    losses = []
    for _ in range(steps):
        optimiser.zero_grad()
        loss = loss_of()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses
