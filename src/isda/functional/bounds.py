"""Upper bounds of the expected loss over all augmented features: Prop. 1 and Prop. 2, as published and tilted.

With augmented features a~ ~ N(a, lambda Sigma) the logits z~ = W a~ + b are Gaussian, and for weights t on the simplex,
wbar = sum_k t_k w_k,

    E[-q.z~ + logsumexp(z~)] <= F(t) - q.z,    F(t) = log sum_j exp(z_j + lambda/2 (w_j - wbar)' Sigma (w_j - wbar))

for every target distribution q (Knowles and Minka, 2011). The paper's supervised bound is t = one-hot(y) ("jensen").
F is convex in t; a few line searches along softmax - t from there, keeping the best value seen, give the "tilted"
bound, which is never looser. The tilt t is constant for autograd: the gradient is the exact gradient of a valid bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from isda.functional.grouping import Groups
from isda.functional.quadratic import centred, product_by_group

TILT_STEPS = 3
LINE_STEPS = 4


class Covariances(Protocol):
    """What the bounds ask of a covariance model; see isda.covariance.CovarianceModel."""

    def variances(self, weight: Tensor, matrices: Tensor) -> Tensor:
        """(K, C) table w_j' Sigma_k w_j."""

    def gram(self, weight: Tensor, matrices: Tensor) -> Tensor:
        """(K, C, C) tables W Sigma_k W'."""

    def transform(self, groups: Groups) -> Callable[[Tensor], Tensor]:
        """The map of (N, A) rows v to Sigma v."""

    def prefers_gram(self, rows: int, matrices: int) -> bool:
        """Whether tables per matrix are cheaper than products per row."""

    def groups(self, classes: Tensor) -> Groups:
        """Rows grouped by the matrix that their class uses."""

    def buffers(self) -> Iterator[Tensor]:
        """The statistics that the operations above read."""


class Tables(NamedTuple):
    """The quadratic forms of a batch: everything F(t) needs besides the logits."""

    diagonal: Tensor
    """(N, C) w_j' Sigma_i w_j."""
    product: Callable[[Tensor], Tensor]
    """Maps tilts (N, C) to (N, C) w_j' Sigma_i wbar_i."""

    def variance(self, tilt: Tensor) -> Tensor:
        """(N, C) (w_j - wbar_i)' Sigma_i (w_j - wbar_i), differentiable in W at a fixed tilt."""
        cross = self.product(tilt)
        return (self.diagonal - 2 * cross + (tilt * cross).sum(1, keepdim=True)).clamp_min(0)


def augmented_logits(logits: Tensor, variance: Tensor, strength: float | Tensor) -> Tensor:
    """z_j + lambda/2 * variance_j: the logits whose logsumexp is F."""
    if isinstance(strength, Tensor):
        return logits + strength / 2 * variance
    return torch.add(logits, variance, alpha=strength / 2)


def jensen_bound(logits: Tensor, targets: Tensor, margin_variance: Tensor, strength: float | Tensor) -> Tensor:
    """(N,) the paper's supervised bound, Prop. 1: cross-entropy of z_ij + lambda/2 R[y_i, j].

    Args:
        logits: (N, C).
        targets: (N,) class indices y.
        margin_variance: (N, C) rows R[y_i, :].
        strength: lambda.

    Example:
        >>> variance = torch.tensor([[0.0, 2.0]])
        >>> jensen_bound(torch.zeros(1, 2), torch.tensor([0]), variance, strength=1.0)  # log(1 + e)
        tensor([1.3133])
    """
    return F.cross_entropy(augmented_logits(logits, margin_variance, strength), targets, reduction="none")


def tilted_bound(
    logits: Tensor,
    targets: Tensor,
    weight: Tensor,
    covariance: Covariances,
    strength: float,
    steps: int = TILT_STEPS,
) -> Tensor:
    """(N,) the tilted supervised bound F(t) - z_y, started at the paper's t = one-hot(y)."""
    start = F.one_hot(targets, logits.shape[1]).to(logits.dtype)
    variance = tilted_variance(logits, start, targets, weight, covariance, strength, steps)
    aimed = logits.gather(1, targets.unsqueeze(1)).squeeze(1)
    return torch.logsumexp(augmented_logits(logits, variance, strength), 1) - aimed


def margin_from_gram(gram: Tensor) -> Tensor:
    """(..., C, C) table of (w_j - w_k)' Sigma (w_j - w_k) at [k, j]; its diagonal is exactly 0."""
    diagonal = gram.diagonal(dim1=-2, dim2=-1)
    variance = (diagonal.unsqueeze(-2) + diagonal.unsqueeze(-1) - gram - gram.mT).clamp_min(0)
    return variance * (1 - torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device))


def quadratic_tables(weight: Tensor, covariance: Covariances, groups: Groups) -> Tables:
    """The forms of each row's covariance, by C x C tables per matrix or by products per row, whichever is cheaper."""
    weight = centred(weight)
    if covariance.prefers_gram(len(groups.slot), len(groups.classes)):
        gram = covariance.gram(weight, groups.classes)
        diagonal = gram.diagonal(dim1=1, dim2=2)[groups.slot]
        return Tables(diagonal, lambda tilt: product_by_group(tilt, gram, groups))
    diagonal, transform = covariance.variances(weight, groups.classes)[groups.slot], covariance.transform(groups)
    return Tables(diagonal, lambda tilt: transform(tilt @ weight) @ weight.t())


@torch.no_grad()
def find_tilt(logits: Tensor, tables: Tables, start: Tensor, strength: float, steps: int = TILT_STEPS) -> Tensor:
    """Weights t on the simplex that make F(t) small; F of the result is never above F(start).

    F has the gradient lambda K (t - s) with K = W Sigma W' and s the softmax of the tilted logits, so s - t is a
    descent direction. One product with K per step.

    Args:
        logits: (N, C).
        tables: the quadratic forms.
        start: (N, C) rows on the simplex.
        strength: lambda.
        steps: how many steps to take.

    Returns:
        (N, C).
    """
    tilt, cross = start, tables.product(start)
    best, best_value = start, torch.full_like(logits[:, 0], torch.inf)
    fixed = logits + strength / 2 * tables.diagonal
    for step in range(steps + 1):
        tilted = fixed - strength * cross
        value = torch.logsumexp(tilted, 1) + strength / 2 * (tilt * cross).sum(1)
        better = value < best_value
        best = torch.where(better.unsqueeze(1), tilt, best)
        best_value = torch.where(better, value, best_value)
        if step == steps:
            break
        softmax = torch.softmax(tilted, 1)
        direction, change = softmax - tilt, tables.product(softmax) - cross
        length = _line_minimum(tilted, tilt, direction, change, strength)
        tilt, cross = tilt + length * direction, cross + length * change
    return best


def _line_minimum(tilted: Tensor, tilt: Tensor, direction: Tensor, change: Tensor, strength: float) -> Tensor:
    """(N, 1) length x in [0, 1] that makes F(t + x d) small, for d = s - t and u = K d = ``change``.

    F is logsumexp(tilted - lambda x u) + lambda (x t.u + x^2/2 d.u) up to a constant, so that the search needs no
    product with K. Newton steps alone overshoot where lambda u is large, and cycle: they are kept within a bracket.
    The search ends where F is three times flatter than at the start.
    """
    slope, offset = (direction * change).sum(1, keepdim=True), (tilt * change).sum(1, keepdim=True)
    length, low, high = torch.zeros_like(slope), torch.zeros_like(slope), torch.ones_like(slope)
    for _ in range(LINE_STEPS):
        softmax = torch.softmax(tilted - strength * length * change, 1)
        centre = (softmax * change).sum(1, keepdim=True)
        gradient = offset + length * slope - centre
        curvature = slope + strength * (softmax * (change - centre).square()).sum(1, keepdim=True)
        low, high = torch.where(gradient < 0, length, low), torch.where(gradient < 0, high, length)
        newton = length - gradient / curvature
        inside = torch.where((newton > low) & (newton < high), newton, (low + high) / 2)
        length = torch.where(gradient.abs() > 0.3 * slope, inside, length)
    return torch.where(slope > 0, length, 0)


def tilted_variance(
    logits: Tensor,
    start: Tensor,
    classes: Tensor,
    weight: Tensor,
    covariance: Covariances,
    strength: float,
    steps: int = TILT_STEPS,
) -> Tensor:
    """(N, C) variances (w_j - wbar_i)' Sigma_y (w_j - wbar_i) at the best tilt found from ``start``.

    ``logsumexp(logits + strength / 2 * result) - q.logits`` is the tilted bound.

    Args:
        logits: (N, C).
        start: (N, C) tilts to start from: one-hot(y) for labelled rows, the prediction for unlabelled ones.
        classes: (N,) whose covariance each row uses.
        weight: (C, A).
        covariance: a covariance model.
        strength: lambda.
        steps: steps of the search.
    """
    tables = quadratic_tables(weight, covariance, covariance.groups(classes))
    tilt = find_tilt(logits.detach(), tables, start, strength, steps)
    return tables.variance(tilt)
