"""Checked training data of an ISDAClassifier, and standardization."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.class_weight import compute_class_weight
from torch import Tensor

from isda._utils.checks import largest_feature

MIN_WEIGHT, MAX_WEIGHT = 1e-30, 1e30
"""Bounds of sums of sample weights and class weights, for float32."""


class FitData(NamedTuple):
    """The validated arguments of fit."""

    rows: NDArray[Any]  # (N, A)
    labels: NDArray[Any]  # (N,)
    counts: NDArray[Any]  # (N,) sample weights
    labelled: NDArray[np.bool_]  # (N,)


class EncodedData(NamedTuple):
    """The labelled rows, with labels 0..C-1."""

    inputs: NDArray[Any]  # (N, A)
    targets: NDArray[Any]  # (N,)
    counts: NDArray[Any]  # (N,) sample weights, above 0
    class_weights: NDArray[Any]  # (C,)
    num_classes: int

    def scaled(self, scaler: Scaler) -> EncodedData:
        """With scaled features."""
        return self._replace(inputs=scaler.transform(self.inputs))


Standardize = str | bool
"""How features are scaled: "columns", each by its own standard deviation; "all", by one for all; or False."""


class Scaler(NamedTuple):
    """Features x as (x - centre) / spread."""

    centre: NDArray[Any]  # (A,)
    spread: NDArray[Any]  # (A,)

    @classmethod
    def of(cls, rows: NDArray[Any], counts: NDArray[Any], standardize: Standardize) -> Scaler:
        """Weighted mean and standard deviation of every feature; 0 and 1 if ``standardize`` is False.

        "all" is the root of the mean variance in place of each standard deviation, over features that are not
        constant. The sum of the variances of the scaled features is the same as with "columns".

        Example:
            >>> rows = np.array([[0.0, 0.0, 5.0], [2.0, 14.0, 5.0]])  # standard deviations 1, 7 and 0
            >>> Scaler.of(rows, np.ones(2), "columns").spread, Scaler.of(rows, np.ones(2), "all").spread
            (array([1., 7., 1.]), array([5., 5., 5.]))
        """
        if not standardize:
            return cls(np.zeros(rows.shape[1], rows.dtype), np.ones(rows.shape[1], rows.dtype))
        # The mean of many equal numbers need not be that number.
        constant = (rows == rows[0]).all(0)
        centre = np.where(constant, rows[0], np.average(rows, axis=0, weights=counts))
        spread = np.sqrt(np.average((rows - centre) ** 2, axis=0, weights=counts))
        # Values that differ by rounding only are divided by their magnitude.
        nearly = spread <= 10 * np.finfo(rows.dtype).eps * np.abs(centre)
        varying = ~(constant | nearly | (spread == 0))
        magnitude = np.where(constant | ~nearly, 1, np.maximum(np.abs(centre), 1))
        if standardize == "all":
            common = np.sqrt(np.mean(spread[varying] ** 2)) if varying.any() else 1.0
            spread = np.where(nearly & ~constant, np.maximum(magnitude, common), common)
        else:
            spread = np.where(varying, spread, magnitude)
        return cls(centre.astype(rows.dtype), spread.astype(rows.dtype))

    def transform(self, rows: NDArray[Any]) -> NDArray[Any]:
        """The scaled rows."""
        return (rows - self.centre) / self.spread

    def to_original(self, weight: NDArray[Any], intercept: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Weights and intercepts for unscaled rows, from those for scaled rows."""
        coefficients = weight / self.spread
        return coefficients, intercept - coefficients @ self.centre

    def from_original(self, coefficients: NDArray[Any], intercept: NDArray[Any]) -> NDArray[Any]:
        """The inverse of ``to_original``: (K, A + 1), the intercepts as the last column."""
        return np.concatenate([coefficients * self.spread, (intercept + coefficients @ self.centre)[:, None]], 1)


def log_likelihoods(logits: Tensor, labels: Tensor) -> Tensor:
    """(N,) log p(y | x) of rows with logits (N, C), in float64."""
    wide = logits.t().double()
    return wide.gather(0, labels.unsqueeze(0)).squeeze(0) - torch.logsumexp(wide, 0)


def log_likelihood(logits: Tensor, labels: Tensor, weights: Tensor) -> float:
    """Weighted mean of log p(y | x) over rows with logits (N, C)."""
    return float((log_likelihoods(logits, labels) * weights).sum() / weights.sum())


_STEPS, _EXACT = 100, 1e-10


def best_scale(logits: Tensor, labels: Tensor, weights: Tensor) -> float:
    """The s > 0 with the largest sum_i u_i log softmax(s z_i)_y plus one row with the mean logits and uniform labels.

    The sum is concave in s. Without the additional row s would be infinite if each row is classified correctly. s is 1
    for logits that are no better than chance.

    The weights u (N,) are in units of rows.

    Example:
        >>> logits, labels = torch.tensor([[0.1, 0.0], [0.0, 0.1], [0.1, 0.0]]), torch.tensor([0, 1, 0])
        >>> round(best_scale(logits, labels, torch.ones(3)), 2)  # right in 3.5 cases of 4: p = 7/8, 10 log 7
        19.46
    """
    # Class by class in memory: reductions over few classes are much faster.
    logits, weights = logits.t().double().contiguous(), weights.double()
    logits -= logits.mean(0)
    squares, share = logits.square(), weights / weights.sum()
    own = float(share @ logits.gather(0, labels.unsqueeze(0)).squeeze(0))
    known = 1 / (1 + 1 / float(weights.sum()))
    low, high, scale = 0.0, float("inf"), 1.0
    if own > 0:
        scale = 1 / float(squares.mean().sqrt())
    for _ in range(_STEPS if own > 0 else 0):
        probabilities = torch.softmax(scale * logits, 0)
        expected = (probabilities * logits).sum(0)
        slope = known * own - float(share @ expected)
        curvature = float(share @ ((probabilities * squares).sum(0) - expected.square()))
        low, high = (scale, high) if slope > 0 else (low, scale)
        new = scale + slope / curvature if curvature > 0 else high
        if not low < new < high:
            new = (low + high) / 2 if high < float("inf") else 2 * scale
        settled, scale = abs(new - scale) <= _EXACT * scale, new
        if settled:
            break
    return scale


def print_progress(line: str) -> None:
    """Print a line to stderr."""
    print(line, file=sys.stderr, flush=True)


def check_magnitudes(rows: NDArray[Any], counts: NDArray[Any], *, standardize: bool) -> None:
    """Raise ValueError for rows (N, A) whose squares overflow, and for sample weights (N,) whose sum does.

    Standard deviations are taken in float64; rows that are not scaled may be fitted in float32.
    """
    below = largest_feature(torch.float64 if standardize else torch.float32)
    largest = max(float(rows.max()), -float(rows.min()))
    if not largest < below:
        hint = "divide the feature by a constant" if standardize else "set standardize=True"
        raise ValueError(f"X must hold values smaller than {below:.2g} in magnitude, got {largest:.2g}; {hint}")
    if counts.max() > MAX_WEIGHT or not MIN_WEIGHT <= counts.sum() <= MAX_WEIGHT:
        raise ValueError(
            f"sample_weight must have a sum between {MIN_WEIGHT:g} and {MAX_WEIGHT:g}, got weights up to "
            f"{counts.max():.2g}"
        )


def class_factors(class_weight: Any, classes: NDArray[Any], labels: NDArray[Any], counts: NDArray[Any]) -> NDArray[Any]:
    """(C,) factors of the losses of each class; ValueError unless they are finite, >= 0 and have a positive sum.

    ``classes`` are sorted; ``labels`` and ``counts`` are those of the labelled rows.
    """
    factors = np.asarray(compute_class_weight(class_weight, classes=classes, y=labels), dtype=np.float64)
    for label, factor in zip(classes.tolist(), factors.tolist(), strict=True):
        if not 0 <= factor <= MAX_WEIGHT:
            raise ValueError(
                f"class_weight must hold finite numbers >= 0 and <= {MAX_WEIGHT:g}, got {factor} for class {label!r}"
            )
    total = float((counts * factors[np.searchsorted(classes, labels)]).sum())
    if len(labels) and not MIN_WEIGHT <= total <= MAX_WEIGHT:
        raise ValueError(
            "class_weight times sample_weight must have a sum over the labelled rows between "
            f"{MIN_WEIGHT:g} and {MAX_WEIGHT:g}, got {total:.2g}"
        )
    return factors
