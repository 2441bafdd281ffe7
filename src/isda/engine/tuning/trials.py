"""What was tried, what came of it, and which of it is best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from isda.engine.tuning.searched import Point

__all__ = ["Proposal", "Trial", "best"]


@dataclass(frozen=True)
class Proposal:
    """A point to try."""

    point: Point
    why: str
    """ "grid", "widened NAME", "refined NAME" or "sampled"."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A point that was tried with every seed."""

    number: int
    point: Point
    why: str
    values: dict[str, float] = field(default_factory=dict)
    """The held-out figure by seed; empty if a run diverged."""
    problem: str = ""
    """What happened to a run that diverged."""

    @property
    def value(self) -> float | None:
        """The mean over seeds; None, which is worse than any number, if a run diverged."""
        return None if self.problem or not self.values else sum(self.values.values()) / len(self.values)

    def as_json(self) -> dict[str, Any]:
        """The trial as plain values."""
        return {
            "number": self.number,
            "point": self.point,
            "why": self.why,
            "value": self.value,
            "values": self.values,
            "problem": self.problem,
        }


def best(trials: Sequence[Trial], lower_is_better: bool) -> Trial | None:
    """The trial with the best figure, the first of equals; None if all have diverged.

    Example:
        >>> figures = enumerate((3.0, 2.0, 2.0))
        >>> tried = [Trial(number=n, point={"x": n}, why="grid", values={"0": figure}) for n, figure in figures]
        >>> best(tried, lower_is_better=True).number
        1
    """
    sign = 1 if lower_is_better else -1
    judged = [(sign * trial.value, trial.number, trial) for trial in trials if trial.value is not None]
    return min(judged, key=lambda one: one[:2])[2] if judged else None
