"""Explicit against implicit augmentation: the paper's Figure 10, error against the number of drawn features."""

from __future__ import annotations

import math
from collections.abc import Sequence

from isda.analysis.studies.study import Cell, Study, with_options
from isda.engine.grammar import split_method

__all__ = ["Explicit"]

COVARIANCES: dict[str, dict[str, object]] = {"estimated": {}, "learned": {"covariance": "learned"}}


class Explicit(Study):
    """M drawn features per sample, and ISDA as M = infinity, with estimated and with learned covariances."""

    title = "Explicit and implicit augmentation"
    axis = "augmented features per sample, M"
    values = (1, 2, 5)

    @classmethod
    def cells(cls, methods: Sequence[str], values: Sequence[float]) -> list[Cell]:
        """Cross-entropy (M = 0), each M, and the limit.

        Example:
            >>> [cell.method for cell in Explicit.cells(["isda"], [5])][:3]
            ['cross-entropy', 'explicit:samples=5', 'isda']
        """
        names = {split_method(method)[0] for method in methods}
        if len(methods) != 1 or not names <= {"isda", "isda-tilted"}:
            raise ValueError(f"explicit augmentation is compared to isda or isda-tilted, got {list(methods)}")
        if not values or min(values) < 1 or not all(float(value).is_integer() for value in values):
            raise ValueError(f"numbers of augmented features must be whole and at least 1, got {list(values)}")
        _, words = split_method(methods[0])
        drawn = f"explicit:{words}" if words else "explicit"
        found = [Cell("cross-entropy (M = 0)", "cross-entropy", None, 0.0)]
        for series, options in COVARIANCES.items():
            for value in values:
                method = with_options(drawn, samples=int(value), **options)
                found.append(Cell(f"M = {value:g}, {series}", method, series, float(value)))
            found.append(Cell(f"M = ∞, {series}", with_options(methods[0], **options), series, math.inf))
        return found
