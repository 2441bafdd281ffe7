"""How weights grow and fall over training: pure functions of (step, steps), and a weight that follows one of them.

Laine & Aila, "Temporal ensembling for semi-supervised learning" (ICLR 2017).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from isda.choices import check_choice

__all__ = ["RAMPS", "RampedWeight", "gaussian_ramp_down", "gaussian_ramp_up", "linear_ramp_up"]


def gaussian_ramp_up(step: int, steps: int) -> float:
    """exp(-5 (1 - t)^2) with t = step / steps in 0..1: from 0.0067 to 1.

    Laine & Aila ramp the unsupervised weight (and their learning rate) like this over the first 80 of 300 epochs,
    Tarvainen & Valpola (2017) over the first 40,000 of 150,000 or 180,000 steps.

    Example:
        >>> [round(gaussian_ramp_up(step, 10), 4) for step in (0, 5, 10, 99)]
        [0.0067, 0.2865, 1.0, 1.0]
    """
    return math.exp(-5.0 * (1.0 - _progress(step, steps)) ** 2)


def gaussian_ramp_down(step: int, steps: int) -> float:
    """exp(-12.5 t^2) with t = step / steps in 0..1, counted from where the ramp-down begins: from 1 to 3.7e-6.

    Laine & Aila ramp the learning rate down like this over the last 50 epochs.

    Example:
        >>> [round(gaussian_ramp_down(step, 10), 4) for step in (-5, 0, 5, 10)]
        [1.0, 1.0, 0.0439, 0.0]
    """
    return math.exp(-12.5 * _progress(step, steps) ** 2)


def linear_ramp_up(step: int, steps: int) -> float:
    """The share t = step / steps in 0..1: the schedule of ISDA's own strength lambda.

    Example:
        >>> [linear_ramp_up(step, 10) for step in (0, 5, 99)]
        [0.0, 0.5, 1.0]
    """
    return _progress(step, steps)


def _progress(step: int, steps: int) -> float:
    """The share t = step / steps, clamped to 0..1; a ramp of no steps is over at once."""
    if steps < 0:
        raise ValueError(f"steps must not be negative, got {steps!r}")
    return 1.0 if steps == 0 else min(max(step / steps, 0.0), 1.0)


RAMPS: dict[str, Callable[[int, int], float]] = {"gaussian": gaussian_ramp_up, "linear": linear_ramp_up}


@dataclass(frozen=True)
class RampedWeight:
    """The weight of a loss term: ``final`` times a ramp-up over the first ``steps``.

    Example:
        >>> weight = RampedWeight(8.0, "gaussian", steps=100)
        >>> round(weight.at(0), 4), weight.at(100)
        (0.0539, 8.0)
    """

    final: float
    """Once the ramp is over."""
    ramp: str = "gaussian"
    """One of RAMPS."""
    steps: int = 0
    """Length of the ramp; 0 for a constant weight."""

    def __post_init__(self) -> None:
        if not 0 <= self.final < math.inf:
            raise ValueError(f"final must be a finite number >= 0, got {self.final!r}")
        check_choice("ramp", self.ramp, tuple(RAMPS))
        if self.steps < 0:
            raise ValueError(f"steps must not be negative, got {self.steps!r}")

    def at(self, step: int) -> float:
        """The weight of step 0, 1, 2, ..."""
        return self.final * RAMPS[self.ramp](step, self.steps)
