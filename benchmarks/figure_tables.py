"""Comparisons of figures by method and seed, as the CSV files of results have them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from isda.lab.report.statistics import Family, Interval, compare_pairs, many_to_one, paired_cells, t_interval

SUFFIX = "+isda"

CONTROLS = ("cross-entropy", "supervised")
"""Methods that others are compared to, where there is one of them."""
RISING = ("accuracy", "ap", "log_likelihood", "map", "miou", "miou_multi_scale_flip")
"""Figures of which more is better."""


@dataclass(frozen=True)
class FigureTable:
    """One comparison: figures by method, seed and name."""

    title: str
    figures: tuple[str, ...]
    """Their names; methods are compared by the first."""
    values: Mapping[str, Mapping[int, Mapping[str, float]]]

    @cached_property
    def control(self) -> str | None:
        """The method that others are compared to; None for the first."""
        return next((name for name in CONTROLS if name in self.values), None)

    @property
    def lower_is_better(self) -> bool:
        """Of the figure that methods are compared by."""
        return self.figures[0] not in RISING

    def by_seed(self, figure: str) -> dict[str, dict[int, float]]:
        """A figure by method and seed, where it is finite."""
        return {
            method: {seed: found[figure] for seed, found in runs.items() if math.isfinite(found.get(figure, math.nan))}
            for method, runs in self.values.items()
        }

    @cached_property
    def _families(self) -> dict[str, Family]:
        """Those that were asked for."""
        return {}

    def family(self, figure: str) -> Family:
        """The intervals of one figure: to the control (Dunnett)."""
        if figure not in self._families:
            cells = paired_cells(self.by_seed(figure))
            self._families[figure] = many_to_one(cells, self.control or next(iter(cells)))
        return self._families[figure]

    @property
    def isda_pairs(self) -> dict[str, tuple[str, str]]:
        """Methods with "+isda" and the same ones without; each may have options of its own after a colon."""
        plain: dict[str, list[str]] = {}
        for label in self.values:
            plain.setdefault(label.partition(":")[0], []).append(label)
        pairs = {}
        for label in self.values:
            name = label.partition(":")[0]
            base = name.removesuffix(SUFFIX)
            variants = [base] if base in self.values else plain.get(base, [])
            if name != base and len(variants) == 1:
                pairs[label] = (label, variants[0])
        return pairs

    def isda_family(self, figure: str) -> Family:
        """Intervals of what ISDA adds to each method, a family of their own."""
        return compare_pairs(paired_cells(self.by_seed(figure)), self.isda_pairs)

    def isda_overall(self, figure: str) -> tuple[Interval, int] | None:
        """Student's interval of what ISDA adds over all methods and seeds, and the number of pairs; None with one."""
        values, pairs = self.by_seed(figure), self.isda_pairs
        gaps = [values[a][seed] - values[b][seed] for a, b in pairs.values() for seed in values[a] if seed in values[b]]
        return (t_interval(gaps), len(gaps)) if len(pairs) > 1 and len(gaps) > 2 else None
