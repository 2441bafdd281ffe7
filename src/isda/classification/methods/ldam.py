"""Label-distribution-aware margins as a method, with deferred re-weighting if asked for."""

from __future__ import annotations

from dataclasses import dataclass

from isda.classification.methods.long_tail import DeferredOptions, LongTailMethod
from isda.losses.long_tail import LDAMMargins, Offset

__all__ = ["LDAM", "LDAMOptions"]


@dataclass(frozen=True, kw_only=True)
class LDAMOptions(DeferredOptions):
    """What may follow ``ldam:``."""

    max_margin: float = 0.5
    """Margin of the smallest class."""
    s: float = 1.0
    """Factor on all margins; 30 in the publication, whose logits are 30 times cosines."""


class LDAM(LongTailMethod):
    """`isda.losses.long_tail.LDAMMargins` of the training images' counts."""

    name = "ldam"
    Options = LDAMOptions
    grid = {"s": (1.0, 2.0, 4.0, 8.0)}  # noqa: RUF012, a class variable of the base

    def offset(self, options: LDAMOptions, counts: list[int]) -> Offset:
        """-s Delta_y on the own class."""
        return LDAMMargins(counts, options.max_margin, options.s)
