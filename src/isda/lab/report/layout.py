"""The two-way layout of a comparison, methods x paired seeds: least squares and the variance of the residuals.

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
NEGLIGIBLE = 1e-12
"""Differences of figures below this share of the largest figure are rounding errors."""


@dataclass(frozen=True, eq=False)
class Layout:
    """The measured cells of methods x seeds.

    Attributes:
        names: the methods, m of them.
        values: (n,) figures.
        methods: (n,) index of the method of each.
        seeds: (n,) index of the seed of each.
        paired: whether a seed has an effect of its own.
    """

    names: tuple[str, ...]
    values: Array
    methods: np.ndarray[Any, np.dtype[np.int64]]
    seeds: np.ndarray[Any, np.dtype[np.int64]]
    paired: bool = True

    @property
    def seed_count(self) -> int:
        """Seeds with a figure of at least one method."""
        return len(np.unique(self.seeds))

    @property
    def missing(self) -> int:
        """Cells of methods x seeds without a figure."""
        return len(self.names) * self.seed_count - len(self.values)

    @cached_property
    def design(self) -> Array:
        """(n, p): a column for each method, and for each seed where seeds are paired."""
        columns = [self.methods == index for index in range(len(self.names))]
        columns += [self.seeds == seed for seed in np.unique(self.seeds)] if self.paired else []
        return np.stack(columns, axis=1).astype(np.float64) if columns else np.zeros((0, 0))

    @cached_property
    def inverse(self) -> Array:
        """(p, p): covariance of the coefficients in units of the residual variance, a pseudo-inverse."""
        return np.asarray(np.linalg.pinv(self.design.T @ self.design, hermitian=True))

    @cached_property
    def solution(self) -> Array:
        """(p,): coefficients of least squares; only differences of methods have a meaning."""
        return self.inverse @ self.design.T @ (self.values - self.values.mean())

    @cached_property
    def dof(self) -> int:
        """Degrees of freedom of the residuals; (m - 1)(s - 1) without missing cells."""
        return len(self.values) - int(np.linalg.matrix_rank(self.design)) if self.names else 0

    @cached_property
    def squares(self) -> float:
        """The residual sum of squares; rounding errors count as 0."""
        residuals = self.values - self.values.mean() - self.design @ self.solution
        return float((residuals[np.abs(residuals) > NEGLIGIBLE * np.abs(self.values).max()] ** 2).sum())

    @cached_property
    def std(self) -> float | None:
        """The residual standard deviation; None without degrees of freedom."""
        return float(np.sqrt(self.squares / self.dof)) if self.dof > 0 else None

    def contrast(self, ours: str, base: str) -> Array | None:
        """(p,): the coefficients of a difference; None if it is not measured, directly or through other methods."""
        if not {ours, base} <= set(self.names):
            return None
        weights = np.zeros(self.design.shape[1])
        weights[self.names.index(ours)] += 1
        weights[self.names.index(base)] -= 1
        known = weights @ self.inverse @ self.design.T @ self.design
        return weights if np.allclose(known, weights, atol=1e-6) else None

    def without(self, *names: str) -> Layout:
        """The layout of the other methods."""
        kept = [index for index, name in enumerate(self.names) if name not in names]
        rows = np.isin(self.methods, kept)
        renumbered = np.searchsorted(kept, self.methods[rows])
        return Layout(
            tuple(self.names[index] for index in kept), self.values[rows], renumbered, self.seeds[rows], self.paired
        )


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
        np.array([seed for _, seed, _ in rows], dtype=np.int64),
        paired,
    )


def unequal_methods(layout: Layout) -> dict[str, float]:
    """The methods whose variance is more than `RATIO` times that of the others, each with this ratio.

    The variance of a method is what it adds to the residual sum of squares of the others, per degree of freedom. The
    ratio must be significant as well (F test, 5% for all methods together): with few seeds a tenfold ratio is common
    among equal variances. The largest is set aside first, the test repeated on the others. Two methods are compared by
    their differences, whose variance needs no such assumption.
    """
    aside: dict[str, float] = {}
    while len(layout.names) > 2:
        ratio, p, worst = max(_variance_ratios(layout), default=(0.0, 1.0, ""))
        if ratio <= RATIO or p * len(layout.names) > SIGNIFICANCE:
            break
        aside[worst] = ratio
        layout = layout.without(worst)
    return aside


def _variance_ratios(layout: Layout) -> Iterator[tuple[float, float, str]]:
    """The ratio of each method's variance to that of the others, and its p-value."""
    for name in layout.names:
        others = layout.without(name)
        dof = layout.dof - others.dof
        if dof > 0 and others.dof >= LEAST_DOF and others.squares > 0:
            ratio = max(0.0, layout.squares - others.squares) / dof / (others.squares / others.dof)
            yield ratio, float(fdtrc(dof, others.dof, ratio)), name
