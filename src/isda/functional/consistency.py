"""The consistency bound for unlabelled samples, Prop. 2: as published (a C x C table per class) and tilted."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from isda.functional.bounds import Covariances, margin_from_gram, tilted_variance
from isda.functional.grouping import WORKSPACE_BYTES, rows_per_chunk
from isda.functional.quadratic import Unchanged, centred
from isda.functional.tilt import TILT_STEPS


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
    keep = logits.numel() * logits.shape[1] * logits.element_size() <= WORKSPACE_BYTES
    most = rows_per_chunk(logits.shape[1] ** 2 * logits.element_size())

    unchanged = Unchanged(*covariance.buffers())

    def rows_of(matrix: Tensor, rows: Tensor, probabilities: Tensor) -> Tensor:
        unchanged.check()
        variance = margin_from_gram(covariance.gram(weight, matrix)[0])
        pairs = torch.logsumexp(rows.unsqueeze(1) + strength / 2 * variance, 2)
        return (probabilities * (pairs - rows)).sum(1)

    values = []
    for slot, index in enumerate(groups.order.split(groups.sizes)):
        for part in index.split(most):
            arguments = (groups.classes[slot : slot + 1], logits[part], prediction[part])
            if keep:
                values.append(rows_of(*arguments))
            else:
                values.append(checkpoint(rows_of, *arguments, use_reentrant=False, preserve_rng_state=False))
    return torch.cat(values)[groups.inverse_order]
