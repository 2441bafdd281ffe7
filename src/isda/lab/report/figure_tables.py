"""Comparisons from CSV files with a line for each run: its method, its seed and its figures.

    data,method,options,seed,error,nll
    cifar10,cross-entropy,{},0,41.35,1.62

Columns left of ``method`` name comparisons (here one for each data set), those between ``method`` and ``seed`` variants
of a method. What stands right of both are figures; the first is the one that methods are compared by.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from isda.lab.report.statistics import (
    Family,
    Interval,
    all_pairs,
    compare_pairs,
    many_to_one,
    mean_std,
    paired_cells,
)
from isda.lab.report.summary import SUFFIX, family_json, overall_difference, overall_json

CONTROLS = ("cross-entropy", "supervised")
"""Methods that others are compared to, where there is one of them."""
SEEDS = ("seed", "draw")
"""Names of the column whose equal values pair runs."""
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
        """The method that others are compared to; None if all pairs are compared."""
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
        """The intervals of one figure: to the control (Dunnett) or of all pairs (Tukey)."""
        if figure not in self._families:
            cells = paired_cells(self.by_seed(figure))
            self._families[figure] = all_pairs(cells) if self.control is None else many_to_one(cells, self.control)
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
        return overall_difference(self.by_seed(figure), self.isda_pairs)

    def as_json(self) -> dict[str, Any]:
        """Plain values, named as those of run folders are; differences are method - control."""
        primary, *others = self.figures
        return {
            "title": self.title,
            "baseline": self.control,
            "figure": primary,
            **self._figure_json(primary),
            "other_figures": {figure: self._figure_json(figure) for figure in others},
        }

    def _figure_json(self, figure: str) -> dict[str, Any]:
        family, values, parts = self.family(figure), self.by_seed(figure), self.isda_family(figure)
        methods = []
        for name, by_seed in values.items():
            spread = mean_std(list(by_seed.values())) if by_seed else None
            difference, part = family.get(name), parts.get(name)
            methods.append(
                {
                    "label": name,
                    "seeds": len(by_seed),
                    f"{figure}_mean": spread.mean if spread else None,
                    f"{figure}_std": spread.std if spread else None,
                    "difference_mean": difference.mean if difference else None,
                    "difference_half_width": difference.half_width if difference else None,
                    "difference_p": family.p_value(name),
                    "from_isda_mean": part.mean if part else None,
                    "from_isda_half_width": part.half_width if part else None,
                }
            )
        overall = self.isda_overall(figure)
        return {"intervals": family_json(family), "from_isda_overall": overall_json(overall), "methods": methods}


def read_figure_tables(path: Path) -> list[FigureTable]:
    """The comparisons of a CSV file, in order of appearance.

    Raises:
        ValueError: the file cannot be read, lacks columns or numbers, or has two runs of one method and seed.
    """
    lines = _read(path)
    if not lines:
        raise ValueError(f"{path} must have a line of names and at least one run, got none")
    names = [name for name in lines[0] if name]
    seed_name = next((name for name in SEEDS if name in names), None)
    if "method" not in names or seed_name is None:
        raise ValueError(f"{path} must have the columns method and seed (or draw), got {', '.join(names)}")
    method, seed = names.index("method"), names.index(seed_name)
    figures = [name for name in names[max(method, seed) + 1 :] if all(_is_number(line[name]) for line in lines)]
    if not figures:
        raise ValueError(f"{path} must have a column of numbers right of method and {seed_name}, got none")
    groups = [name for name in names[:method] if name != seed_name]
    variants = names[method + 1 : seed]
    tables: dict[str, list[dict[str, str]]] = {}
    for line in lines:
        tables.setdefault(", ".join(line[name] for name in groups), []).append(line)
    return [
        FigureTable(
            title=f"{path.name}: {title}" if title else path.name,
            figures=tuple(figures),
            values=_values(path, rows, variants, seed_name, figures),
        )
        for title, rows in tables.items()
    ]


def _read(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = [line for line in csv.DictReader(file, restval="") if any(line.values())]
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        raise ValueError(f"{path} cannot be read as a CSV file: {problem}") from problem
    # A line with more cells than names has them under the key None.
    return [{name: value for name, value in line.items() if isinstance(value, str)} for line in lines]


def _is_number(text: str) -> bool:
    try:
        float(text or "nan")
    except ValueError:
        return False
    return True


def _values(
    path: Path, lines: Sequence[Mapping[str, str]], variants: Sequence[str], seed_name: str, figures: Sequence[str]
) -> dict[str, dict[int, dict[str, float]]]:
    values: dict[str, dict[int, dict[str, float]]] = {}
    for line in lines:
        alike = [other for other in lines if other["method"] == line["method"]]
        words = [name for name in variants if any(other[name] != line[name] for other in alike)]
        label = " ".join([line["method"], *(f"{name}={line[name]}" for name in words)])
        try:
            seed = int(line[seed_name])
        except ValueError:
            raise ValueError(f"{path} must have integers as {seed_name}, got {line[seed_name]!r}") from None
        runs = values.setdefault(label, {})
        if seed in runs:
            raise ValueError(f"{path} must have one line of each method and seed, got two of {label}, {seed}")
        runs[seed] = {name: float(line[name] or "nan") for name in figures}
    return values
