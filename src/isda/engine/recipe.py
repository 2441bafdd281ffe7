"""Recipes of training as data, and the learning rate of each step.

Shorter versions of a recipe shrink everything that is counted in epochs together.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Protocol

__all__ = ["SCALES", "Recipe", "learning_rate", "warm_up_steps"]

SCALES = {"paper": 1.0, "small": 1 / 10, "smoke": 1 / 80}
"""The share of the paper's epochs that a scale trains for."""
MOST_EPOCHS = 10**9
"""A run of more would not end, and steps are counted in 64 bits."""

POLY_POWER = 0.9
"""Of the schedule that segmentation networks are trained with since DeepLab (Chen et al., 2017)."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """An optimiser, the schedule of its learning rate, and what goes before the first step."""

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
    optimiser: str = "sgd"
    """One of `isda.engine.optimisers`."""
    warm_up: float = 0.0
    """Epochs in which the learning rate rises in a line."""
    layer_decay: float = 1.0
    """The classifier has the whole learning rate, each layer below it this share of the one above."""
    first_pass: bool = False
    """See every training image once, before the first step, for ISDA's statistics."""
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
        """The same recipe in another number of epochs: milestones, warm-up and averaging window keep their proportion.

        Example:
            >>> short = Recipe(epochs=160, batch_size=128, weight_decay=1e-4, milestones=(80, 120)).lasting(16)
            >>> short.milestones, short.average_last
            ((8, 12), 1)
        """
        if epochs < 1:
            raise ValueError(f"epochs must be at least 1, got {epochs}")
        if epochs > MOST_EPOCHS:
            raise ValueError(f"epochs must be at most {MOST_EPOCHS}, got {epochs}")
        factor = epochs / self.epochs
        return replace(
            self,
            epochs=epochs,
            milestones=tuple(max(1, round(milestone * factor)) for milestone in self.milestones),
            warm_up=self.warm_up * factor,
            average_last=max(1, min(epochs, round(self.average_last * factor))),
        )

    def scaled(self, scale: str) -> Recipe:
        """The recipe at one of the SCALES."""
        return self.lasting(max(1, round(self.epochs * SCALES[scale])))


def warm_up_steps(asked: str | None, recipe: Recipe, steps_per_epoch: int) -> int:
    """The steps of a warm-up.

    Args:
        asked: epochs, "2" or "0.5", or steps, "100steps"; the recipe's epochs if None.
        recipe: at its length.
        steps_per_epoch: of the run.

    Example:
        >>> recipe = Recipe(epochs=10, batch_size=32, weight_decay=0, warm_up=2)
        >>> [warm_up_steps(asked, recipe, 50) for asked in (None, "0.5", "30steps")]
        [100, 25, 30]
    """
    if asked is None:
        return round(recipe.warm_up * steps_per_epoch)
    found = re.fullmatch(r"(\d{1,9})steps|(\d{1,9}(?:\.\d{1,9})?)", asked.strip())
    if found is None:
        raise ValueError(f"warm_up must be a number of epochs, 2 or 0.5, or of steps, 100steps, got {asked!r}")
    steps = int(found[1]) if found[1] else round(float(found[2]) * steps_per_epoch)
    if steps > recipe.epochs * steps_per_epoch:
        raise ValueError(
            f"warm_up must end within the {recipe.epochs * steps_per_epoch} steps of the run, got {asked!r}"
        )
    return steps


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
    def warm_up_steps(self) -> int: ...
    @property
    def total_steps(self) -> int: ...


def learning_rate(config: _Scheduled, step: int) -> float:
    """The learning rate of step t = 0, 1, ... of T.

    Steps: lr * factor^(number of milestones passed). Cosine: lr (1 + cos(pi t / T)) / 2. Poly: lr (1 - t / T)^0.9.
    In the first W steps of a warm-up it is (t + 1) / W of that.
    """
    risen = 1.0 if step >= config.warm_up_steps else (step + 1) / config.warm_up_steps
    return risen * _scheduled(config, step)


def _scheduled(config: _Scheduled, step: int) -> float:
    """Without a warm-up."""
    if config.schedule == "poly":
        return config.lr * (1 - step / config.total_steps) ** POLY_POWER
    if config.schedule == "cosine":
        return config.lr * (1 + math.cos(math.pi * step / config.total_steps)) / 2
    passed = sum(step >= milestone * config.steps_per_epoch for milestone in config.milestones)
    return config.lr * config.lr_factor**passed
