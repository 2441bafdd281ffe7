"""Upper bounds of the expected cross-entropy over augmented features a~ ~ N(a, lambda Sigma_y), as ISDALoss uses them.

N samples, C classes, A features; z = W a + b are the logits (N, C), w_j the rows of W (C, A), lambda is ``strength``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from isda.covariance.base import Groups, multiply, parts

Forms = Callable[[Tensor], Tensor]
"""Maps x (N, C), whose rows sum to 0, to (w_j - w_y)' Sigma_y sum_k x_k w_k, (N, C)."""

STEPS = (0.7, 4.0, math.inf)
"""Each step of the search for a tilt goes towards a softmax that is flatter where logits differ by more than this. On
benchmarks/tilt.py the bound's gap is then at most 8% above that of the minimum, without flattening 32%."""

TABLE_ROWS = 4
"""Tables of C x C numbers per class pay where they have at most this many rows for each sample."""


def augmented_logits(logits: Tensor, variance: Tensor, strength: float | Tensor) -> Tensor:
    """z_j + lambda/2 v_j, by which Prop. 1 is a cross-entropy: -log(exp(z_y) / sum_j exp(z_j + lambda/2 v_j)).

    The published bound has v_j = (w_j - w_y)' Sigma_y (w_j - w_y), ``covariance.margins``; the tilted one
    `tilted_variance`.

    Example:
        >>> augmented_logits(torch.zeros(1, 2), torch.tensor([[0.0, 3.0]]), strength=2.0)
        tensor([[0., 3.]])
    """
    return logits + strength / 2 * variance


def expected_cross_entropy(
    augmented: Tensor,
    logits: Tensor,
    targets: Tensor,
    *,
    class_weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """sum_c q_c weight_c (logsumexp(augmented) - z_c) for targets q, reduced as torch.nn.functional.cross_entropy does.

    Args:
        augmented: (N, C, ...) logits whose logsumexp bounds E[logsumexp(z~)].
        logits: (N, C, ...) z.
        targets: (N, ...) class indices, or (N, C, ...) distributions q.
        class_weight: (C,) or None.
        ignore_index: label that does not count.
        reduction: mean, sum or none.
        label_smoothing: part of q that is spread over all classes.

    Example:
        >>> z = torch.zeros(1, 2)
        >>> expected_cross_entropy(z + torch.tensor([[0.0, 2.0]]), z, torch.tensor([0]))  # log(1 + exp(2))
        tensor(2.1269)
    """
    soft = targets.is_floating_point()
    ignore_index = -100 if soft else ignore_index
    plain = F.cross_entropy(
        logits,
        targets,
        class_weight,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction="none",
    )
    added = augmented.logsumexp(1) - logits.logsumexp(1)
    counted = torch.ones_like(added) if soft else (targets != ignore_index).to(added.dtype)
    own = mass = counted
    if class_weight is not None:
        if soft:
            mass = torch.tensordot(targets.to(logits.dtype), class_weight, dims=([1], [0]))
        else:
            own = mass = class_weight.gather(0, (targets * (targets != ignore_index)).flatten()).view_as(counted)
            own = own * counted
        mass = ((1 - label_smoothing) * mass + label_smoothing * class_weight.mean()) * counted
    losses = plain + mass * added
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else losses.sum() / own.sum()


def class_tables(weight: Tensor, covariance: Any, classes: Tensor) -> Tensor:
    """(K, C, C) w_i' Sigma_k w_j, of centred weights."""
    centred = weight - weight.detach().mean(0)
    tables = []
    for part in parts(len(classes), weight.numel()):
        rows = centred.repeat(len(classes[part]), 1)
        image = covariance.product(rows, Groups.equal(classes[part], len(weight)))
        tables.append(image.view(-1, *weight.shape) @ centred.t())
    return torch.cat(tables)


def pair_variances(tables: Tensor) -> Tensor:
    """(K, C, C) (w_j - w_i)' Sigma_k (w_j - w_i) from tables (K, C, C) of the forms w_i' Sigma_k w_j."""
    own = tables.diagonal(dim1=1, dim2=2)
    return (own.unsqueeze(1) + own.unsqueeze(2) - tables - tables.mT).clamp(min=0)


def margin_forms(weight: Tensor, covariance: Any, groups: Groups, labels: Tensor) -> tuple[Tensor, Forms]:
    """(N, C) variances of the margins z_j - z_y of rows with the labels y, and the bilinear forms of their weights.

    Few classes: tables of all forms, one per class of the groups. Many: products of rows with their covariance.
    """
    own = labels.unsqueeze(1)
    if len(groups.classes) * len(weight) <= TABLE_ROWS * len(groups.slot):
        tables = class_tables(weight, covariance, groups.classes)
        rows = Groups(torch.arange(len(tables), device=labels.device), groups.slot)
        margins = pair_variances(tables).flatten(0, 1).index_select(0, groups.slot * len(weight) + labels)

        def forms(x: Tensor) -> Tensor:
            result = multiply(x, tables, rows)
            return result - result.gather(1, own)

    else:
        margins = covariance.margins(weight, groups.classes).index_select(0, groups.slot)
        centred = weight - weight.detach().mean(0)

        def forms(x: Tensor) -> Tensor:
            result = covariance.product(x @ centred, groups) @ centred.t()
            return result - result.gather(1, own)

    return margins, forms


def tilted_variance(
    logits: Tensor,
    margins: Tensor,
    forms: Forms,
    labels: Tensor,
    strength: float | Tensor,
    start: Tensor | None = None,
    steps: Sequence[float] = STEPS,
) -> Tensor:
    """(N, C) v_j = (w_j - wbar)' Sigma_y (w_j - wbar) with wbar = sum_k t_k w_k, for a tilt t that makes F(t) small.

    For any t on the simplex E[logsumexp(z~)] <= F(t) = logsumexp_j(z_j + lambda/2 v_j) (Knowles and Minka, 2011); the
    published bound is t = one-hot(y). F is convex, and least where t is the softmax of the tilted logits. Each step
    goes from t towards that softmax, made flatter at first, as far as is best. The tilt found is a constant in the
    backward pass.

    Args:
        logits: (N, C) z.
        margins: (N, C) of `margin_forms`.
        forms: likewise.
        labels: (N,) y, the class whose covariance a row has.
        strength: lambda.
        start: (N, C) the first t; one-hot(y) by default.
        steps: see STEPS.
    """
    with torch.no_grad():
        own = F.one_hot(labels, logits.shape[1]).to(logits.dtype)
        tilt = own if start is None else start
        cross = torch.zeros_like(logits) if start is None else forms(start - own)
        fixed = logits + strength / 2 * margins
        for spread in steps:
            tilted = fixed - strength * cross
            temperature = 1 + deviation(tilted) / spread
            move = torch.softmax(tilted / temperature, 1) - tilt
            slope = forms(move)
            length = _best_length(tilted, move, slope, cross, strength)
            tilt, cross = tilt + length * move, cross + length * slope
        difference = tilt - own
    cross = forms(difference)
    return (margins - 2 * cross + (difference * cross).sum(1, keepdim=True)).clamp(min=0)


def deviation(logits: Tensor) -> Tensor:
    """(N, 1) the standard deviation of each row, but for entries that are not finite."""
    finite = logits.isfinite()
    count = finite.sum(1, keepdim=True).clamp(min=1)
    known = torch.where(finite, logits, 0)
    centred = torch.where(finite, known - known.sum(1, keepdim=True) / count, 0)
    return (centred.square().sum(1, keepdim=True) / count).sqrt()


def _best_length(tilted: Tensor, move: Tensor, slope: Tensor, cross: Tensor, strength: float | Tensor) -> Tensor:
    """(N, 1) the length x in 0..1 where F(t + x move) is least, to 1/64: the zero of its rising derivative.

    dF/dx = lambda (cross . move + x move . slope - softmax(tilted - x lambda slope) . slope).
    """
    linear, square = (cross * move).sum(1, keepdim=True), (move * slope).sum(1, keepdim=True)
    low, width = torch.zeros_like(linear), 1.0
    for _ in range(3):
        width /= 4
        lengths = low + width * torch.arange(1, 4, device=low.device, dtype=low.dtype)  # (N, 3)
        shares = torch.softmax(tilted.unsqueeze(1) - (strength * lengths).unsqueeze(2) * slope.unsqueeze(1), 2)
        falling = linear + lengths * square < (shares * slope.unsqueeze(1)).sum(2)
        low = low + width * falling.sum(1, keepdim=True)
    return low


def consistency(
    logits: Tensor, weight: Tensor, covariance: Any, strength: float | Tensor, bound: str = "jensen"
) -> Tensor:
    """(N,) Prop. 2: bound of E[-sum_k p_k log p~_k] for the prediction p, held constant, and Sigma of its class.

    Published: sum_k p_k [logsumexp_j(z_j + lambda/2 (w_j - w_k)' Sigma (w_j - w_k)) - z_k]. Tilted: F(t) - p.z, the
    search for t started at p; never looser, and C times less work.
    """
    prediction = torch.softmax(logits.detach(), 1)
    labels = prediction.argmax(1)
    groups = Groups.of(labels, logits.shape[1])
    if bound == "tilted":
        margins, forms = margin_forms(weight, covariance, groups, labels)
        variance = tilted_variance(logits.detach(), margins, forms, labels, strength, prediction)
        return augmented_logits(logits, variance, strength).logsumexp(1) - (prediction * logits).sum(1)
    variances = pair_variances(class_tables(weight, covariance, groups.classes))
    losses = []
    for part in parts(len(logits), variances[0].numel()):
        rows, variance = logits[part], variances.index_select(0, groups.slot[part])
        pairs = augmented_logits(rows.unsqueeze(1), variance, strength).logsumexp(2)
        losses.append((prediction[part] * (pairs - rows)).sum(1))
    return torch.cat(losses)
