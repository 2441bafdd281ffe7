"""Class-balanced weights (Cui et al., CVPR 2019) as a method."""

from __future__ import annotations

from dataclasses import dataclass

from isda.classification.methods.long_tail import LongTailMethod

__all__ = ["ClassBalanced", "ClassBalancedOptions"]


@dataclass(frozen=True, kw_only=True)
class ClassBalancedOptions:
    """What may follow ``class-balanced:``."""

    beta: float = 0.9999
    """Of the effective numbers (1 - beta^n) / (1 - beta)."""


class ClassBalanced(LongTailMethod):
    """`isda.functional.class_balanced_weights`, from the first step on."""

    name = "class-balanced"
    Options = ClassBalancedOptions
    grid = {"beta": (0.9, 0.99, 0.999, 0.9999)}  # noqa: RUF012, a class variable of the base

    def weighted_from(self, options: ClassBalancedOptions) -> float:
        """The start."""
        return 0.0
