"""Tilts of all rows to the accuracy that a step of the solver needs.

`isda.functional.tilt.converged_tilt` goes on until rounding stops it, in every row. The solver of the outer problem
starts each search from the tilts of the step before, and needs the sum over all rows of F(t) - min F to be small
beside what its own next step gains: one or two Newton steps with roughly solved systems.
"""

from __future__ import annotations

import torch
from torch import Tensor

from isda.functional.tilt import ConvergedTilt, converged_tilt

_STEPS, _CONJUGATE_STEPS = 6, 12
_SYSTEM_ACCURACY = 0.1
"""Of a Newton step's system, relative to its right-hand side: the next step mends what is left."""


def approximate_tilt(logits: Tensor, table: Tensor, start: Tensor, weights: Tensor, enough: float) -> ConvergedTilt:
    """Tilts t with sum_i u_i (s - t)' K (s - t) <= ``enough``, s = softmax(c - K t).

    Half of that is the gap between F(t) and its dual at s: f is at most so far above its value with the best tilts.
    Full Newton steps; where these do not converge, the safeguarded ones of ``converged_tilt``.

    Args:
        logits: (N, C) z.
        table: (C, C) K = lambda W Sigma W'.
        start: (N, C) tilts to start from, on the simplex.
        weights: (N,) u of the rows.
        enough: in nats; rounding of the logits is a lower bound.

    Example:
        >>> K, u = torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.ones(1)
        >>> approximate_tilt(torch.zeros(1, 2), K, torch.tensor([[0.6, 0.4]]), u, enough=1e-12).tilt
        tensor([[0.5000, 0.5000]])
    """
    share = weights.unsqueeze(1)
    fixed, tilt, cross = logits + table.diagonal() / 2, start, _times(start, table)
    # Rounding of the logits moves s by this part of it.
    rounding = 2 * torch.finfo(logits.dtype).eps * float(fixed.abs().amax())
    enough, before = max(enough, rounding**2 * float(table.diagonal().amax() * weights.sum())), torch.inf
    for _ in range(_STEPS):
        tilted = fixed - cross
        largest = tilted.amax(1, keepdim=True)
        softmax = (tilted - largest).exp_()
        total = softmax.sum(1, keepdim=True)
        softmax.div_(total)
        residual = softmax - tilt
        pulled = _times(residual, table)
        gap = float((share * residual * pulled).sum())
        if gap <= enough:
            value = (largest + total.log_()).squeeze(1) + (tilt * cross).sum(1) / 2
            return ConvergedTilt(tilt, softmax, value)
        if not gap < before:
            break
        before = gap
        direction, change = _rough_system(softmax, residual, pulled, table, share)
        tilt, cross = tilt + direction, cross + change
    return converged_tilt(logits, table, start, enough=enough / float(weights.sum()))


def _rough_system(
    softmax: Tensor, right: Tensor, pulled: Tensor, table: Tensor, share: Tensor
) -> tuple[Tensor, Tensor]:
    """Solutions d and K d of (I + S K) d = r, by conjugate gradients until the rows' weighted residual is small."""
    solution, image = torch.zeros_like(right), torch.zeros_like(right)
    residual, direction, change = right, right, pulled
    norm = (residual * pulled).sum(1, keepdim=True).clamp_min_(0)
    enough, tiny = _SYSTEM_ACCURACY**2 * float((share * norm).sum()), torch.finfo(right.dtype).tiny
    for _ in range(_CONJUGATE_STEPS):
        applied = softmax * change
        applied = torch.addcmul(applied, softmax, applied.sum(1, keepdim=True), value=-1).add_(direction)
        # At most 1 but for rounding: d'K (I + S K) d >= d'K d >= r'K r.
        length = (norm / (change * applied).sum(1, keepdim=True).clamp_min_(tiny)).clamp_max_(1)
        solution, image = solution.addcmul_(length, direction), image.addcmul_(length, change)
        residual = torch.addcmul(residual, length, applied, value=-1)
        pulled = _times(residual, table)
        previous, norm = norm, (residual * pulled).sum(1, keepdim=True).clamp_min_(0)
        if float((share * norm).sum()) <= enough:
            break
        ratio = torch.where(previous > 0, norm / previous.clamp_min(tiny), 0)
        direction, change = torch.addcmul(residual, ratio, direction), torch.addcmul(pulled, ratio, change)
    return solution, image


def _times(values: Tensor, table: Tensor) -> Tensor:
    """(N, C) values times the symmetric K, class by class in memory as the values are."""
    return (table @ values.t()).t()
