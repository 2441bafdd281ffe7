"""The consistency bound for unlabelled samples, Prop. 2: as published (a C x C table per class) and tilted."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from isda.functional.bounds import Covariances, margin_from_gram, tilted_variance
from isda.functional.grouping import WORKSPACE_BYTES, chunks
from isda.functional.quadratic import centred
from isda.functional.tilt import TILT_STEPS
from isda.functional.unchanged import Unchanged

__all__ = ["jensen_consistency", "tilted_consistency"]


def tilted_consistency(
    logits: Tensor, weight: Tensor, covariance: Covariances, strength: float, steps: int = TILT_STEPS
) -> Tensor:
    """(N,) F(t) - p.z with the tilt started at t = p, the detached prediction.

    By convexity F(p) <= sum_k p_k F(one-hot(k)): never looser than the published form, at 1/C of its work.
    """
    prediction = torch.softmax(logits.detach(), 1)
    variance = tilted_variance(logits, prediction, prediction.argmax(1), weight, covariance, strength, steps)
    return torch.logsumexp(logits + strength / 2 * variance, 1) - (prediction * logits).sum(1)


def jensen_consistency(logits: Tensor, weight: Tensor, covariance: Covariances, strength: float) -> Tensor:
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
    unchanged = Unchanged(*covariance.buffers())

    def rows_of(part: slice) -> Tensor:
        unchanged.check()
        rows, slot = logits[part], groups.slot[part]
        if tables is None:
            variance = margin_from_gram(covariance.gram(weight, groups.classes.index_select(0, slot)))
        else:
            variance = tables.index_select(0, slot)
        pairs = torch.logsumexp(torch.add(rows.unsqueeze(1), variance, alpha=strength / 2), 2)
        return (prediction[part] * (pairs - rows)).sum(1)

    if keep:
        return rows_of(slice(None))
    return torch.cat(
        [
            checkpoint(rows_of, part, use_reentrant=False, preserve_rng_state=False)
            for part in chunks(len(logits), table_bytes)
        ]
    )
