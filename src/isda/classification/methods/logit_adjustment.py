"""Logit adjustment as a method."""

from __future__ import annotations

from dataclasses import dataclass

from isda.classification.methods.long_tail import DeferredOptions, LongTailMethod
from isda.losses.long_tail import LogitAdjustment, Offset

__all__ = ["LogitAdjustmentMethod", "LogitAdjustmentOptions"]


@dataclass(frozen=True, kw_only=True)
class LogitAdjustmentOptions(DeferredOptions):
    """What may follow ``logit-adjustment:``."""

    tau: float = 1.0
    """Factor on the logarithms of the classes' shares."""


class LogitAdjustmentMethod(LongTailMethod):
    """`isda.losses.long_tail.LogitAdjustment` on the shares of the training images."""

    name = "logit-adjustment"
    Options = LogitAdjustmentOptions
    grid = {"tau": (0.5, 1.0, 1.5, 2.0)}  # noqa: RUF012, a class variable of the base

    def offset(self, options: LogitAdjustmentOptions, counts: list[int]) -> Offset:
        """o_yj = tau (log pi_j - log pi_y)."""
        return LogitAdjustment(counts, options.tau)
