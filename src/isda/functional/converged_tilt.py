"""The tilt t that minimises F(t), converged: for optimisers whose gradient must be that of the minimum itself.

isda.functional.tilt stops after a few steps on the classes that matter, which a loss in training does not notice. Here
all rows share one table K = lambda W Sigma W' (C, C), all classes take part, and Newton's method goes on until nothing
is left: its systems (I + S K) d = s - t, S = diag(s) - s s', are self-adjoint in the inner product x'Ky and have few
eigenvalues away from 1, so that conjugate gradients need a handful of products (N, C) x (C, C) each.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["ConvergedTilt", "converged_tilt", "tilt_system"]

NEWTON_STEPS = 50
CONJUGATE_STEPS = 50
_LENGTHS = 12
_ACCURACY = 1e-3
"""Of a Newton step's system: the next step mends what is left, at the cost of as few products as this took."""


class ConvergedTilt(NamedTuple):
    """Where the search ended."""

    tilt: Tensor
    """(N, C) t, on the simplex."""
    softmax: Tensor
    """(N, C) s = softmax(c - K t), equal to t at the minimum."""
    value: Tensor
    """(N,) F(t)."""


def converged_tilt(logits: Tensor, table: Tensor, start: Tensor) -> ConvergedTilt:
    """Minimise F(t) = logsumexp_j(z_j + 1/2 (e_j - t)' K (e_j - t)) for every row.

    Args:
        logits: (N, C) z.
        table: (C, C) K = lambda W Sigma W', symmetric and positive semi-definite.
        start: (N, C) tilts to start from, on the simplex.

    Example:
        >>> K = torch.tensor([[2.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
        >>> found = converged_tilt(torch.zeros(1, 2, dtype=torch.float64), K, torch.tensor([[1.0, 0.0]]).double())
        >>> found.tilt, found.value  # log 2 + 1/2
        (tensor([[0.5000, 0.5000]], dtype=torch.float64), tensor([1.1931], dtype=torch.float64))
    """
    fixed, epsilon = logits + table.diagonal() / 2, torch.finfo(logits.dtype).eps
    tilt, cross = start, start @ table
    lengths = torch.linspace(0, 1, _LENGTHS, dtype=logits.dtype, device=logits.device).square().view(-1, 1, 1)
    # A tilt is never better known than to the rounding of its logits, which are large where K is.
    close, slack = epsilon**0.75, 8 * epsilon * torch.linalg.vector_norm(fixed, torch.inf, 1)
    for _ in range(NEWTON_STEPS):
        tilted = fixed - cross
        softmax = torch.softmax(tilted, 1)
        residual = softmax - tilt
        pulled = residual @ table
        # r'Kr is twice the fall of F that is left, where K is small.
        if bool(((residual * pulled).sum(1) <= close**2 * table.diagonal().max()).all()):
            break
        direction, change = tilt_system(softmax, residual, table, accuracy=_ACCURACY)
        # F(t + x d) = logsumexp(c - Kt - x Kd) + x d.Kt + x^2/2 d.Kd + constant
        values = torch.logsumexp(tilted - lengths * change, 2)
        values += lengths.squeeze(2) * (direction * cross).sum(1) + lengths.squeeze(2).square() / 2 * (
            direction * change
        ).sum(1)
        # Where F differs by its rounding alone the full step is the better one: only it converges.
        length = lengths.flatten()[(values - lengths.squeeze(2) * slack).argmin(0)].unsqueeze(1)
        step = length * direction
        if bool(step.abs().amax() <= close):
            break
        tilt, cross = tilt + step, torch.addcmul(cross, length, change)
    tilted = fixed - cross
    value = torch.logsumexp(tilted, 1) + (tilt * cross).sum(1) / 2
    return ConvergedTilt(tilt, torch.softmax(tilted, 1), value)


def tilt_system(
    softmax: Tensor, right: Tensor, table: Tensor, *, accuracy: float | None = None
) -> tuple[Tensor, Tensor]:
    """Solve (I + S K) d = r for every row by conjugate gradients, until what is left of r is ``accuracy`` of it.

    Returns d and K d, both (N, C).
    """
    accuracy = 4 * torch.finfo(right.dtype).eps if accuracy is None else accuracy
    solution, image = torch.zeros_like(right), torch.zeros_like(right)
    residual, pulled = right, right @ table
    direction, change = residual, pulled
    norm = (residual * pulled).sum(1, keepdim=True).clamp_min(0)
    enough, tiny = accuracy**2 * norm, torch.finfo(right.dtype).tiny
    for _ in range(min(CONJUGATE_STEPS, 2 * len(table))):
        applied = softmax * change
        applied -= softmax * applied.sum(1, keepdim=True)
        applied += direction
        image_of = applied @ table
        length = norm / (change * applied).sum(1, keepdim=True).clamp_min(tiny)
        solution, image = torch.addcmul(solution, length, direction), torch.addcmul(image, length, change)
        residual, pulled = residual - length * applied, pulled - length * image_of
        previous, norm = norm, (residual * pulled).sum(1, keepdim=True).clamp_min(0)
        if bool((norm <= enough).all()):
            break
        ratio = norm / previous.clamp_min(tiny)
        direction, change = residual + ratio * direction, pulled + ratio * change
    return solution, image
