"""Rows as they came, rows as they are fitted, and the scaling between them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Data", "Fitted", "Scaler"]


class Data(NamedTuple):
    """What fit was called with, checked."""

    rows: NDArray[Any]
    """(N, A)."""
    labels: NDArray[Any]
    """(N,)."""
    counts: NDArray[Any]
    """(N,) sample weights."""
    labelled: NDArray[np.bool_]
    """(N,)."""


class Fitted(NamedTuple):
    """The labelled rows, scaled, with labels 0..C-1."""

    inputs: NDArray[Any]
    """(N, A)."""
    targets: NDArray[Any]
    """(N,)."""
    counts: NDArray[Any]
    """(N,) sample weights, above 0."""
    class_weights: NDArray[Any]
    """(C,)."""
    num_classes: int


class Scaler(NamedTuple):
    """Features x as (x - centre) / spread."""

    centre: NDArray[Any]
    """(A,)."""
    spread: NDArray[Any]
    """(A,)."""

    @classmethod
    def of(cls, rows: NDArray[Any], counts: NDArray[Any], *, on: bool) -> Scaler:
        """Weighted mean and standard deviation of every feature; 0 and 1 where not ``on``, 1 for a constant feature."""
        if not on:
            return cls(np.zeros(rows.shape[1], rows.dtype), np.ones(rows.shape[1], rows.dtype))
        centre = np.average(rows, axis=0, weights=counts)
        spread = np.sqrt(np.average((rows - centre) ** 2, axis=0, weights=counts))
        # The spread of a constant feature is the rounding of its mean, or of its values.
        constant = (rows == rows[0]).all(0) | (spread <= 10 * np.finfo(rows.dtype).eps * np.abs(centre))
        return cls(centre.astype(rows.dtype), np.where(constant | (spread == 0), 1, spread).astype(rows.dtype))

    def scaled(self, rows: NDArray[Any]) -> NDArray[Any]:
        """The rows as they are fitted."""
        return (rows - self.centre) / self.spread

    def unscaled(self, weight: NDArray[Any], intercept: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Weights and intercepts for rows as they came, from those for scaled ones."""
        coefficients = weight / self.spread
        return coefficients, intercept - coefficients @ self.centre

    def rescaled(self, coefficients: NDArray[Any], intercept: NDArray[Any]) -> NDArray[Any]:
        """The inverse of ``unscaled``: (K, A + 1), the intercepts as the last column."""
        return np.concatenate([coefficients * self.spread, (intercept + coefficients @ self.centre)[:, None]], 1)
