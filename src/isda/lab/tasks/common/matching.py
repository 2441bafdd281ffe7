"""lambda_0="auto" in runs: criteria are matched after each epoch to a tenth of the training images.

The tenth is held out until the last fifth of the epochs, and then put back: from there on the strength stays as it is.
The number of steps is that of all training images.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from isda._utils.devices import in_eval_mode
from isda._utils.seeds import generator
from isda.lab.data import hold_out
from isda.lab.engine.options import AUTOMATIC
from isda.lab.engine.processes import Processes
from isda.losses import ISDALoss

HELD_OUT_SHARE = 10
MOST_HELD_OUT = 5000
"""As many as the paper holds out of CIFAR's training images; enough for a mean loss."""
PUT_BACK = 0.8
"""The share of the epochs after which the held-out images are put back."""
TRAINING_SAMPLES = 512
"""Training images whose loss is compared with that of the held-out ones."""


def automatic_criteria(method: nn.Module) -> list[ISDALoss]:
    """The criteria of a method whose strength is matched."""
    return [module for module in method.modules() if isinstance(module, ISDALoss) and module.schedule.automatic]


def check_automatic(method_options: Mapping[str, Any], images: int) -> None:
    """Raise a ValueError if there are too few labelled training images to hold out a tenth."""
    if method_options.get("lambda_0") == AUTOMATIC and images < HELD_OUT_SHARE:
        raise ValueError(
            f"lambda_0=auto needs at least {HELD_OUT_SHARE} training images, of which a tenth is held out, got {images}"
        )


@dataclass(frozen=True)
class Withheld:
    """Training samples that are held out of the first epochs.

    Args:
        positions: of those samples.
        epochs: number of epochs without them.
    """

    positions: Tensor
    epochs: int

    @classmethod
    def draw(cls, positions: Tensor, labels: Tensor | None, epochs: int, seed: int) -> Withheld:
        """A tenth of the samples, with the proportions of their labels where they are given.

        Example:
            >>> withheld = Withheld.draw(torch.arange(40), torch.arange(40) % 2, epochs=20, seed=0)
            >>> len(withheld.positions), withheld.epochs
            (4, 16)
        """
        size = min(len(positions) // HELD_OUT_SHARE, MOST_HELD_OUT)
        if labels is None:
            chosen = torch.randperm(len(positions), generator=generator(seed))[:size].sort().values
        else:
            chosen = hold_out(labels, size, seed=seed).held_out
        return cls(positions[chosen], math.ceil(PUT_BACK * epochs))

    def without(self, positions: Tensor, epoch: int) -> Tensor:
        """The positions that an epoch, counted from 0, trains on."""
        return positions if epoch >= self.epochs else positions[~torch.isin(positions, self.positions)]

    def own(self, processes: Processes) -> Tensor:
        """This process's part of the held-out positions; all where there are fewer than processes."""
        return own_part(self.positions, processes)


def own_part(positions: Tensor, processes: Processes) -> Tensor:
    """This process's part of positions; all of them where there are fewer than processes."""
    return positions if len(positions) < processes.world else positions.tensor_split(processes.world)[processes.rank]


@torch.no_grad()
def logits_and_targets(
    network: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], logits_of: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """The logits of a network in eval mode, and the targets, of all batches of (images, targets)."""
    with in_eval_mode(network):
        pairs = [(logits_of(images), targets) for images, targets in batches]
    logits, targets = zip(*pairs, strict=True)
    return torch.cat(logits), torch.cat(targets)
