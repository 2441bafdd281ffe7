"""The two-way layout of a comparison, methods x paired seeds: least squares, residual variance, equality of variances.

y_ms = a_m + b_s + e_ms: what a seed does to every method (data subset, initial weights, order of batches) is b_s. The
residuals of all methods estimate one variance. Cells may be missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import fdtrc

from isda.lab.report.multivariate_t import Array

Cells = Mapping[str, Sequence[float | None]]
"""Figures by method, in the order of seeds; None and numbers that are not finite are missing."""

RATIO = 10.0
"""A method whose variance exceeds that of the others by more is not pooled with them."""
SIGNIFICANCE = 0.05
LEAST_DOF = 4
"""Degrees of freedom of the others, at least, to set a method aside: with fewer, equal variances would be told apart
too often, and intervals would cover too little."""
DRAWS = 1999
"""Simulated layouts behind the p-value of Levene's statistic."""
NEGLIGIBLE = 1e-12
"""Differences of figures below this share of the largest figure are rounding errors."""


@dataclass(frozen=True, eq=False)
class Layout:
    """The measured cells of methods x seeds.

    Attributes:
        names: the methods, m of them.
        values: (n,) figures.
        methods: (n,) index of the method of each.
        seeds: (n,) index of the seed of each; all the same where seeds are not paired.
        paired: whether a seed has an effect of its own.
    """

    names: tuple[str, ...]
    values: Array
    methods: np.ndarray[Any, np.dtype[np.int64]]
    seeds: np.ndarray[Any, np.dtype[np.int64]]
    paired: bool = True

    @property
    def seed_count(self) -> int:
        """Seeds with a figure of at least one method; unpaired, the most figures of a method."""
        if not self.names:
            return 0
        return len(np.unique(self.seeds)) if self.paired else int(np.bincount(self.methods).max())

    @property
    def missing(self) -> int:
        """Cells of methods x seeds without a figure."""
        if not self.paired:
            return 0
        parts = [np.isin(self.methods, part) for part in self.components]
        cells = sum(len(np.unique(self.methods[own])) * len(np.unique(self.seeds[own])) for own in parts)
        return cells - len(self.values)

    @cached_property
    def components(self) -> list[list[int]]:
        """The methods that can be compared with each other, through seeds they share or through others'."""
        if not self.paired:
            return [list(range(len(self.names)))]
        parts: list[list[int]] = []
        for first in range(len(self.names)):
            if any(first in part for part in parts):
                continue
            reached, before = np.array([first]), 0
            while len(reached) > before:
                before = len(reached)
                seeds = np.unique(self.seeds[np.isin(self.methods, reached)])
                reached = np.unique(self.methods[np.isin(self.seeds, seeds)])
            parts.append(reached.tolist())
        return parts

    @cached_property
    def design(self) -> Array:
        """(n, p) of full rank: a column for each method, and for each seed but the first of its component."""
        columns = [self.methods == index for index in range(len(self.names))]
        for part in self.components if self.paired else ():
            seeds = np.unique(self.seeds[np.isin(self.methods, part)])
            columns += [self.seeds == seed for seed in seeds[1:]]
        return np.stack(columns, axis=1).astype(np.float64)

    @cached_property
    def _solution(self) -> Array:
        """(p,) the coefficients of least squares."""
        return np.linalg.lstsq(self.design, self.values - self.values.mean(), rcond=None)[0]

    @property
    def effects(self) -> Array:
        """(m,) effects of the methods; only their differences have a meaning."""
        return self._solution[: len(self.names)]

    @cached_property
    def covariance(self) -> Array:
        """(m, m) covariance of the effects, in units of the residual variance."""
        inverse: Any = np.linalg.inv(self.design.T @ self.design)
        covariance: Array = inverse[: len(self.names), : len(self.names)]
        return covariance

    @property
    def dof(self) -> int:
        """Degrees of freedom of the residuals, n - p; (m - 1)(s - 1) without missing cells."""
        return len(self.values) - self.design.shape[1] if self.names else 0

    @property
    def residuals(self) -> Array:
        """(n,)."""
        return self.values - self.values.mean() - self.design @ self._solution

    @property
    def squares(self) -> float:
        """The residual sum of squares; rounding errors count as 0."""
        residuals = self.residuals
        return float((residuals[np.abs(residuals) > NEGLIGIBLE * np.abs(self.values).max()] ** 2).sum())

    @cached_property
    def std(self) -> float | None:
        """The residual standard deviation; None without degrees of freedom."""
        return float(np.sqrt(self.squares / self.dof)) if self.dof > 0 else None

    def contrast(self, ours: str, base: str) -> Array:
        """(m,) the coefficients of a difference of two methods."""
        weights = np.zeros(len(self.names))
        weights[self.names.index(ours)] += 1
        weights[self.names.index(base)] -= 1
        return weights

    def without(self, *names: str) -> Layout:
        """The layout of the other methods."""
        return self._of([index for index, name in enumerate(self.names) if name not in names])

    def _of(self, kept: Sequence[int]) -> Layout:
        rows = np.isin(self.methods, kept)
        renumbered = np.searchsorted(kept, self.methods[rows])
        names = tuple(self.names[index] for index in kept)
        return Layout(names, self.values[rows], renumbered, self.seeds[rows], self.paired)

    def around(self, *names: str) -> Layout:
        """The components that these methods belong to."""
        wanted = {self.names.index(name) for name in names}
        kept = [index for part in self.components if wanted & set(part) for index in part]
        return self._of(sorted(kept))


def make_layout(cells: Cells, *, paired: bool = True) -> Layout:
    """The layout of all figures; methods without any are left out.

    Raises:
        ValueError: methods have unequal numbers of (paired) seeds.
    """
    counts = {name: len(figures) for name, figures in cells.items()}
    if paired and len(set(counts.values())) > 1:
        raise ValueError(
            f"values must have a figure or None for every seed of every method, got {counts} figures; "
            "paired=False compares independent seeds"
        )
    rows = [
        (name, seed, float(figure))
        for name, figures in cells.items()
        for seed, figure in enumerate(figures)
        if figure is not None and np.isfinite(figure)
    ]
    names = tuple(dict.fromkeys(name for name, _, _ in rows))
    return Layout(
        names,
        np.array([figure for _, _, figure in rows], dtype=np.float64),
        np.array([names.index(name) for name, _, _ in rows], dtype=np.int64),
        np.array([seed if paired else 0 for _, seed, _ in rows], dtype=np.int64),
        paired,
    )


def levene(layout: Layout) -> float | None:
    """The p-value of Levene's test that the residuals of all methods have one variance; None with too few.

    Residuals of a two-way layout are correlated, and few: the statistic, the F ratio of |residual| between methods, is
    compared with its values in simulated normal layouts with the same cells. Methods with one figure are left out.
    """
    counts = np.bincount(layout.methods)
    single = [name for name, count in zip(layout.names, counts, strict=True) if count < 2]
    layout = layout.without(*single)
    if len(layout.names) < 3 or layout.dof < 2 or layout.squares == 0:
        return None  # the residuals of two methods are equal but for their signs
    design = layout.design
    draws = np.random.default_rng(0).standard_normal((DRAWS, len(layout.values)))
    residuals = draws - draws @ np.linalg.pinv(design).T @ design.T
    ratios = _ratios(np.concatenate([layout.residuals[None], residuals]), layout)
    return float((1 + (ratios[1:] >= ratios[0]).sum()) / (1 + DRAWS))


def _ratios(residuals: Array, layout: Layout) -> Array:
    """(draws,) F ratios of absolute residuals (draws, n) between methods, up to a constant."""
    sizes, members = np.abs(residuals), layout.design[:, : len(layout.names)]
    means = sizes @ members / members.sum(axis=0)
    within = ((sizes - means @ members.T) ** 2).sum(axis=1)
    between = ((means - sizes.mean(axis=1, keepdims=True)) ** 2 * members.sum(axis=0)).sum(axis=1)
    return np.asarray(between / np.maximum(within, np.finfo(np.float64).tiny))


def unequal_methods(layout: Layout) -> dict[str, float]:
    """The methods whose variance is more than `RATIO` times that of the others, each with this ratio.

    The variance of a method is what it adds to the residual sum of squares of the others, per degree of freedom. The
    ratio must be significant as well (F test, 5% for all methods together): with few seeds a tenfold ratio is common
    among equal variances. The largest is set aside first, the test repeated on the others. Two methods are compared by
    their differences, whose variance needs no such assumption.
    """
    aside: dict[str, float] = {}
    while len(layout.names) > 2:
        ratios = dict(_variance_ratios(layout))
        worst = max(ratios, key=lambda name: ratios[name][0], default=None)
        if worst is None:
            break
        ratio, p = ratios[worst]
        if ratio <= RATIO or p * len(layout.names) > SIGNIFICANCE:
            break
        aside[worst] = ratio
        layout = layout.without(worst)
    return aside


def _variance_ratios(layout: Layout) -> Iterator[tuple[str, tuple[float, float]]]:
    for name in layout.names:
        others = layout.without(name)
        if len(others.components) > len(layout.components):
            continue  # only this method holds a component together
        dof = layout.dof - others.dof
        if dof > 0 and others.dof >= LEAST_DOF and others.squares > 0:
            ratio = max(0.0, layout.squares - others.squares) / dof / (others.squares / others.dof)
            yield name, (ratio, float(fdtrc(dof, others.dof, ratio)))
