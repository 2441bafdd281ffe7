"""Upper bounds of the expected loss over all augmented features: Prop. 1 and Prop. 2, as published and tilted.

With augmented features a~ ~ N(a, lambda Sigma) the logits z~ = W a~ + b are Gaussian, and for weights t on the simplex,
wbar = sum_k t_k w_k,

    E[-q.z~ + logsumexp(z~)] <= F(t) - q.z,    F(t) = log sum_j exp(z_j + lambda/2 (w_j - wbar)' Sigma (w_j - wbar))

for every target distribution q (Knowles and Minka, 2011). The paper's supervised bound is t = one-hot(y) ("jensen").
F is convex in t; its minimum (isda.functional.tilt) is the "tilted" bound, which is never looser: the better of it and
the start is kept. The tilt t is constant in a backward pass: the gradient is the exact gradient of a valid bound. For
second derivatives it is a function of logits and weights (isda.functional.tilt_derivative).

The consistency bounds for unlabelled samples, Prop. 2, take the prediction as q: `jensen_consistency` as published,
with a C x C table per class, and `tilted_consistency` with one tilt.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from isda._utils.devices import in_graph, in_transform
from isda.functional.grouping import WORKSPACE_BYTES, UnchangedBuffers, chunks
from isda.functional.quadratic import centred
from isda.functional.tables import CovarianceProtocol, quadratic_tables
from isda.functional.tilt import TILT_STEPS, add_scaled, search_tilt
from isda.functional.tilt_derivative import TiltedRows, with_moving_tilt


def augmented_logits(logits: Tensor, variance: Tensor, strength: float | Tensor) -> Tensor:
    """z_j + lambda/2 * variance_j: the logits whose logsumexp is F."""
    if isinstance(strength, Tensor) and not in_graph():
        return logits + strength / 2 * variance
    return add_scaled(logits, variance, strength / 2)


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
    covariance: CovarianceProtocol,
    strength: float | Tensor,
    steps: int = TILT_STEPS,
) -> Tensor:
    """(N,) the tilted supervised bound F(t) - z_y, started at the paper's t = one-hot(y)."""
    variance = tilted_variance(logits, targets, targets, weight, covariance, strength, steps)
    aimed = logits.gather(1, targets.unsqueeze(1)).squeeze(1)
    return torch.logsumexp(augmented_logits(logits, variance, strength), 1) - aimed


def margin_from_gram(gram: Tensor) -> Tensor:
    """(..., C, C) table of (w_j - w_k)' Sigma (w_j - w_k) at [k, j]; its diagonal is exactly 0."""
    diagonal = gram.diagonal(dim1=-2, dim2=-1)
    variance = (diagonal.unsqueeze(-2) + diagonal.unsqueeze(-1) - gram - gram.mT).clamp_min(0)
    return variance * (1 - torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device))


def tilted_variance(
    logits: Tensor,
    start: Tensor,
    classes: Tensor,
    weight: Tensor,
    covariance: CovarianceProtocol,
    strength: float | Tensor,
    steps: int = TILT_STEPS,
) -> Tensor:
    """(N, C) variances (w_j - wbar_i)' Sigma_y (w_j - wbar_i) at the best tilt found from ``start``.

    ``logsumexp(logits + strength / 2 * result) - q.logits`` is the tilted bound.

    Args:
        logits: (N, C).
        start: (N, C) tilts to start from, the prediction for unlabelled rows; or (N,) classes y for one-hot(y).
        classes: (N,) whose covariance each row uses.
        weight: (C, A).
        covariance: a covariance model.
        strength: lambda.
        steps: steps of the search.
    """
    groups = covariance.groups(classes)
    once = steps > 0 and not in_graph() and not in_transform()
    tables = quadratic_tables(weight, covariance, groups, once=once)
    found = search_tilt(logits.detach(), tables, start, strength, steps)
    variance = tables.variance(found.tilt, found.memo if once else None)
    if steps == 0 or in_graph() or not torch.is_grad_enabled():
        return variance
    rows = TiltedRows(
        lambda weight: quadratic_tables(weight, covariance, groups),
        found.tilt,
        strength,
        UnchangedBuffers(*covariance.buffers()),
    )
    if in_transform():
        return tables.variance(rows.moving_tilt(logits, tables))
    if not (logits.requires_grad or variance.requires_grad):
        return variance
    parameters = covariance.parameters() if isinstance(covariance, nn.Module) else ()
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    return with_moving_tilt(variance, rows, logits, weight, *trained)


def tilted_consistency(
    logits: Tensor, weight: Tensor, covariance: CovarianceProtocol, strength: float | Tensor, steps: int = TILT_STEPS
) -> Tensor:
    """(N,) F(t) - p.z with the tilt started at t = p, the detached prediction.

    By convexity F(p) <= sum_k p_k F(one-hot(k)): never looser than the published form, at 1/C of its work.
    """
    prediction = torch.softmax(logits.detach(), 1)
    variance = tilted_variance(logits, prediction, prediction.argmax(1), weight, covariance, strength, steps)
    return torch.logsumexp(logits + strength / 2 * variance, 1) - (prediction * logits).sum(1)


def jensen_consistency(
    logits: Tensor, weight: Tensor, covariance: CovarianceProtocol, strength: float | Tensor
) -> Tensor:
    """(N,) sum_k p_k [logsumexp_j(z_j + lambda/2 (w_j - w_k)' Sigma (w_j - w_k)) - z_k], eq. (15).

    p is the detached prediction and Sigma that of its class. The N x C x C terms are worked through in chunks; those
    that would not stay within the workspace are made again in the backward pass.
    """
    prediction = torch.softmax(logits.detach(), 1)
    groups = covariance.groups(prediction.argmax(1))
    weight = centred(weight)
    table_bytes = logits.shape[1] ** 2 * logits.element_size()
    keep = len(logits) * table_bytes <= WORKSPACE_BYTES
    tables = None
    if len(groups.classes) * table_bytes <= WORKSPACE_BYTES:
        tables = margin_from_gram(covariance.gram(weight, groups.classes))
    unchanged = UnchangedBuffers(*covariance.buffers())

    def rows_of(part: slice) -> Tensor:
        unchanged.check()
        rows, slot = logits[part], groups.slot[part]
        if tables is None:
            variance = margin_from_gram(covariance.gram(weight, groups.classes.index_select(0, slot)))
        else:
            variance = tables.index_select(0, slot)
        pairs = torch.logsumexp(add_scaled(rows.unsqueeze(1), variance, strength / 2), 2)
        return (prediction[part] * (pairs - rows)).sum(1)

    if keep:
        return rows_of(slice(None))
    return torch.cat(
        [
            checkpoint(rows_of, part, use_reentrant=False, preserve_rng_state=False)
            for part in chunks(len(logits), table_bytes)
        ]
    )
