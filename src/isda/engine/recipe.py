"""Recipes of stochastic gradient descent as data, and the learning rate of each step.

Shorter versions of a recipe shrink everything that is counted in epochs together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

__all__ = ["SCALES", "Recipe", "learning_rate"]

SCALES = {"paper": 1.0, "small": 1 / 10, "smoke": 1 / 80}
"""The share of the paper's epochs that a scale trains for."""

POLY_POWER = 0.9
"""Of the schedule that segmentation networks are trained with since DeepLab (Chen et al., 2017)."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Stochastic gradient descent with Nesterov momentum, and the schedule of its learning rate."""

    epochs: int
    batch_size: int
    """Over all processes together."""
    weight_decay: float
    momentum: float = 0.9
    lr: float = 0.1
    """The initial learning rate."""
    schedule: str = "steps"
    """"steps": multiplied by lr_factor at each milestone; "cosine": lr * (1 + cos(pi t / T)) / 2 at step t of T;
    "poly": lr * (1 - t / T)^0.9."""
    milestones: tuple[int, ...] = ()
    """Epochs after which the learning rate falls."""
    lr_factor: float = 0.1
    average_last: int = 10
    """The reported figures are means over this many last epochs."""
    covariance: str = "full"
    """ISDA's covariance model."""
    lambda_0: float = 0.5
    """ISDA's strength at the end of training."""
    strengths: tuple[float, ...] = (0.1, 0.25, 0.5, 0.75, 1.0)
    """What the paper chooses it from, on CIFAR."""
    label_noise: float = 0.05
    """The share of labels that DisturbLabel draws anew."""

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1:
            raise ValueError(f"epochs and batch_size must be at least 1, got {self.epochs} and {self.batch_size}")

    def lasting(self, epochs: int) -> Recipe:
        """The same recipe in another number of epochs: milestones and averaging window keep their proportion.

        Example:
            >>> short = Recipe(epochs=160, batch_size=128, weight_decay=1e-4, milestones=(80, 120)).lasting(16)
            >>> short.milestones, short.average_last
            ((8, 12), 1)
        """
        if epochs < 1:
            raise ValueError(f"epochs must be at least 1, got {epochs}")
        factor = epochs / self.epochs
        return replace(
            self,
            epochs=epochs,
            milestones=tuple(max(1, round(milestone * factor)) for milestone in self.milestones),
            average_last=max(1, min(epochs, round(self.average_last * factor))),
        )

    def scaled(self, scale: str) -> Recipe:
        """The recipe at one of the SCALES."""
        return self.lasting(max(1, round(self.epochs * SCALES[scale])))


class _Scheduled(Protocol):
    """What of a configuration decides the learning rate."""

    @property
    def lr(self) -> float: ...
    @property
    def schedule(self) -> str: ...
    @property
    def milestones(self) -> tuple[int, ...]: ...
    @property
    def lr_factor(self) -> float: ...
    @property
    def steps_per_epoch(self) -> int: ...
    @property
    def total_steps(self) -> int: ...


def learning_rate(config: _Scheduled, step: int) -> float:
    """The learning rate of step t = 0, 1, ... of T.

    Steps: lr * factor^(number of milestones passed). Cosine: lr (1 + cos(pi t / T)) / 2. Poly: lr (1 - t / T)^0.9.
    """
    if config.schedule == "poly":
        return config.lr * (1 - step / config.total_steps) ** POLY_POWER
    if config.schedule == "cosine":
        return config.lr * (1 + math.cos(math.pi * step / config.total_steps)) / 2
    passed = sum(step >= milestone * config.steps_per_epoch for milestone in config.milestones)
    return config.lr * config.lr_factor**passed
