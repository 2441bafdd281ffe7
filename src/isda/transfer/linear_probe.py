"""A linear classifier on fixed features, its penalty chosen on features that it has not seen."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from isda.data import hold_out

__all__ = ["LinearProbe", "fit_probe", "widening_search"]

PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1)
"""Of scikit-learn's C, the inverse penalty; the grid grows by decades while its edge wins."""
WIDEST = (1e-9, 1e6)
HELD_OUT_SHARE = 0.2
HOLD_OUT_SEED = 0


@dataclass(frozen=True)
class LinearProbe:
    """logits = features weight' + bias."""

    weight: Tensor
    """(C, A)"""
    bias: Tensor
    """(C,)"""
    penalty: float
    """The C that was chosen."""
    tried: dict[float, float]
    """Mean negative log-likelihood on held-out features by C."""

    def __call__(self, features: Tensor) -> Tensor:
        """(N, C) logits of features (N, A)."""
        return F.linear(features, self.weight, self.bias)


def fit_probe(features: Tensor, labels: Tensor, classes: int) -> LinearProbe:
    """Minimise C sum_i CE(W x_i + b, y_i) + |W|^2 / 2 over standardised features x, for the best C on held-out ones.

    A fifth of the samples is held out with the class proportions of all to choose C by its log-likelihood; the probe is
    then fitted to all of them. The problem is convex, nothing is random, and the standardisation is folded into the
    weights that are returned.

    Args:
        features: (N, A) float64.
        labels: (N,) class indices, at least two different ones.
        classes: C.

    Raises:
        ValueError: fewer than two classes, or too few samples to hold some out.
    """
    seen = labels.unique()
    if len(seen) < 2:
        raise ValueError(f"labels must name at least two classes to probe, got {len(seen)}")
    held = int(HELD_OUT_SHARE * len(labels))
    if held < 1:
        raise ValueError(f"a probe needs at least {int(1 / HELD_OUT_SHARE)} labelled images, got {len(labels)}")
    mean, std = features.mean(0), features.std(0, correction=0)
    scale = torch.where(std > 0, std, torch.ones_like(std))
    rows = (features - mean) / scale
    fitted, judged = hold_out(labels, held, seed=HOLD_OUT_SEED)
    if len(labels[fitted].unique()) < 2:
        raise ValueError(f"{len(labels)} labelled images are too few to hold some out and keep two classes")

    def judge(penalty: float) -> float:
        weight, bias = _fit(rows[fitted], labels[fitted], classes, penalty)
        return float(F.cross_entropy(F.linear(rows[judged], weight, bias), labels[judged]))

    penalty, tried = widening_search(judge, PENALTIES)
    weight, bias = _fit(rows, labels, classes, penalty)
    weight = weight / scale
    return LinearProbe(weight, bias - weight @ mean, penalty, tried)


def widening_search(judge: Callable[[float], float], grid: tuple[float, ...]) -> tuple[float, dict[float, float]]:
    """The value of a grid by decades with the lowest judgement, which lies inside: the grid grows while its edge wins.

    Example:
        >>> best, tried = widening_search(lambda c: abs(c - 100.0), (0.1, 1.0))
        >>> best, max(tried)
        (100.0, 1000.0)
    """
    tried = {value: judge(value) for value in grid}
    while True:
        best = min(tried, key=lambda value: tried[value])
        lowest, highest = min(tried), max(tried)
        if best == lowest and lowest > WIDEST[0]:
            further = 10.0 ** (round(math.log10(lowest)) - 1)
        elif best == highest and highest < WIDEST[1]:
            further = 10.0 ** (round(math.log10(highest)) + 1)
        else:
            return best, dict(sorted(tried.items()))
        tried[further] = judge(further)


def _fit(rows: Tensor, labels: Tensor, classes: int, penalty: float) -> tuple[Tensor, Tensor]:
    """Weights (C, A) and biases (C,) for all classes; one that was not seen is never the answer."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=penalty, tol=1e-5, max_iter=2000)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        try:
            model.fit(rows.numpy(), labels.numpy())
        except ConvergenceWarning as error:
            raise ValueError(f"the linear probe with C={penalty:g} did not converge: {error}") from error
    weight, bias = torch.from_numpy(model.coef_), torch.from_numpy(model.intercept_)
    if len(weight) == 1:
        # scikit-learn has one row for two classes: the difference of their logits.
        weight, bias = torch.cat([-weight, weight]) / 2, torch.cat([-bias, bias]) / 2
    seen = torch.from_numpy(model.classes_)
    everyone = rows.new_zeros(classes, rows.shape[1]).index_copy(0, seen, weight)
    # Not minus infinity: the log-likelihood of a label that was never seen stays a number.
    return everyone, torch.full((classes,), float(bias.min()) - 30.0, dtype=rows.dtype).index_copy(0, seen, bias)
