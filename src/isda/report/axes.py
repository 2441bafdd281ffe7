"""Axes of a chart: from values to positions, and round numbers for the ticks."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Axis", "round_ticks"]


@dataclass(frozen=True)
class Axis:
    """Maps the values low..high to the positions start..end, evenly or by their logarithms."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """The position of a value."""
        low, high, value = (math.log(v) if self.logarithmic else v for v in (self.low, self.high, value))
        return self.start + (self.end - self.start) * (value - low) / (high - low)

    def ticks(self, count: int) -> list[float]:
        """About `count` round values between low and high."""
        return _decades(self.low, self.high, count) if self.logarithmic else round_ticks(self.low, self.high, count)


def round_ticks(low: float, high: float, count: int) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten between low and high, about `count` of them.

    Example:
        >>> round_ticks(0.3, 4.1, 4)
        [1.0, 2.0, 3.0, 4.0]
    """
    if not low < high:
        raise ValueError(f"low must be below high, got {low} and {high}")
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(factor for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    # A division by the inverse keeps 3 * 0.1 at 0.3.
    return [index / round(1 / step) if step < 1 else index * step for index in range(first, last + 1)]


def _decades(low: float, high: float, count: int) -> list[float]:
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        ticks = [factor * 10.0**exponent for exponent in exponents for factor in factors]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) <= count + 1:
            return ticks
    return ticks[:: math.ceil(len(ticks) / count)]
