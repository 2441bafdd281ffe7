"""The search for the tilt t that minimises F(t) (isda.functional.bounds): a few Newton steps, or to convergence.

With K = lambda W Sigma W' and c_j = z_j + K_jj / 2, F(t) = logsumexp(c - K t) + t'Kt / 2 is convex with the gradient
K (t - s), s = softmax(c - K t), and min_t F(t) = max_s [s.c - s'Ks / 2 + entropy(s)], where t = s at the optimum. Few
classes have a share in it, so that a step of `find_tilt`, used by losses, is a system of a dozen unknowns per row.

`converged_tilt` is for optimisers that need the gradient of the minimum itself. All rows share one table K and all
classes take part. Newton's systems (I + S K) d = s - t, S = diag(s) - s s', are self-adjoint in the inner product x'Ky
and have few eigenvalues away from 1, so that conjugate gradients need a handful of products (N, C) x (C, C) each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from isda.functional.grouping import chunks, join_chunks
from isda.functional.tables import Pool, QuadraticTables, spread

TILT_STEPS = 4
FEW = 20
"""Unknowns of a row's Newton steps: classes, or 19 classes and all the others in fixed proportions."""
MANY_ROWS = 4096
"""With more rows than this, pixels that is, half as many unknowns: the systems cost as much as the rest of the step."""
_LENGTHS = 8


class FoundTilt(NamedTuple):
    """Where a search ended."""

    tilt: Tensor
    """(N, C), on the simplex."""
    value: Tensor
    """(N,) F."""
    memo: Tensor | None
    """What the tables keep of the tilt, see QuadraticTables."""


def find_tilt(
    logits: Tensor, tables: QuadraticTables, start: Tensor, strength: float | Tensor, steps: int = TILT_STEPS
) -> Tensor:
    """The tilt (N, C) of `search_tilt`."""
    return search_tilt(logits, tables, start, strength, steps).tilt


@torch.no_grad()
def search_tilt(
    logits: Tensor, tables: QuadraticTables, start: Tensor, strength: float | Tensor, steps: int = TILT_STEPS
) -> FoundTilt:
    """Weights t on the simplex that minimise F(t); F of the result is never above F(start).

    Up to m = FEW classes all steps are Newton steps on F. With more, half of them move the weights of the m largest
    logits, and half those of the m - 1 classes that then matter most, against all others in the proportions of their
    softmax: an ascent of the dual on a face that all classes have a part in. What is computed, and on which classes,
    is decided on the device: it never waits for the host.

    Args:
        logits: (N, C).
        tables: the quadratic forms.
        start: (N, C) rows on the simplex, or (N,) classes for their one-hot rows.
        strength: lambda.
        steps: how many Newton steps to take; 0 for the start itself.
    """
    fixed, num_classes = add_scaled(logits, tables.diagonal, strength / 2), logits.shape[1]
    memo = None
    if start.ndim == 1:
        few = start.unsqueeze(1)
        weights = torch.ones_like(few, dtype=logits.dtype)
        start, (cross, memo) = spread(fixed, few, weights), tables.product_of_few(few, weights)
    else:
        cross = tables.product(start)
    best = FoundTilt(start, _evaluate(fixed, start, cross, strength)[1], memo)
    if steps == 0:
        return best
    size = min(num_classes, FEW if len(logits) <= MANY_ROWS else FEW // 2)
    newton = _Newton.of(fixed, size)
    if num_classes <= size:
        everything = torch.arange(num_classes, device=logits.device).expand_as(fixed)
        tilt = _weights_of_few(newton, fixed, tables, everything, strength, steps)
        return _better(best, FoundTilt(tilt, _evaluate(fixed, tilt, tables.product(tilt), strength)[1], None))
    # Logits at a quarter of the way from equal weights, where K t = 0, to the start: about where the minimum lies.
    few = add_scaled(fixed, cross, -strength / 4).topk(size, 1, sorted=False).indices
    weights = _weights_of_few(newton, fixed.gather(1, few), tables, few, strength, max(1, steps // 2))
    tilt = spread(fixed, few, weights)
    cross, memo = tables.product_of_few(few, weights)
    tilted, value = _evaluate(fixed, tilt, cross, strength)
    best = _better(best, FoundTilt(tilt, value, memo))
    if steps == 1:
        return best
    few = torch.maximum(torch.softmax(tilted, 1), tilt).topk(size - 1, 1, sorted=False).indices
    others = torch.softmax(tilted.scatter(1, few, -torch.inf), 1)
    pool = tables.pool(others)
    weights = _weights_with_others(
        newton, fixed, tables, few, tilt.gather(1, few), others, pool, strength, steps - steps // 2
    )
    weights, share = weights[:, :-1], weights[:, -1:]
    tilt = (share * others).scatter(1, few, weights)
    cross, memo = tables.product_with_pool(few, weights, pool, share)
    return _better(best, FoundTilt(tilt, _evaluate(fixed, tilt, cross, strength)[1], memo))


def add_scaled(first: Tensor, second: Tensor, scale: float | Tensor) -> Tensor:
    """Add ``scale * second``; the scale is a tensor without dimensions where a graph is recorded."""
    if isinstance(scale, Tensor):
        return torch.addcmul(first, second, scale.to(first.dtype))
    return torch.add(first, second, alpha=scale)


def _evaluate(fixed: Tensor, tilt: Tensor, cross: Tensor, strength: float | Tensor) -> tuple[Tensor, Tensor]:
    """(N, C) tilted logits c - K t and (N,) values F(t), from the forms w_j' Sigma wbar = ``cross``."""
    tilted = add_scaled(fixed, cross, -strength)
    return tilted, add_scaled(torch.logsumexp(tilted, 1), (tilt * cross).sum(1), strength / 2)


def _better(best: FoundTilt, other: FoundTilt) -> FoundTilt:
    """The better of two tilts per row; the first where they are equal or the second is not finite."""
    better = other.value < best.value
    row = better.unsqueeze(1)
    memo = None if best.memo is None or other.memo is None else torch.where(row, other.memo, best.memo)
    return FoundTilt(torch.where(row, other.tilt, best.tilt), torch.where(better, other.value, best.value), memo)


def _weights_of_few(
    newton: _Newton, fixed: Tensor, tables: QuadraticTables, few: Tensor, strength: float | Tensor, steps: int
) -> Tensor:
    """(N, m) weights of the classes ``few`` that minimise F where there are no others, c = ``fixed`` (N, m).

    Newton steps from the vertices creep along the edges, because their softmax is saturated. The first two steps are
    therefore those of a flatter problem, (c - K t) / temperature, which starts at a tenth of half the mean variance of
    a margin.
    """

    def solve(part: slice) -> Tensor:
        table = strength * tables.restricted(few[part], part)
        spread = table.diagonal(dim1=1, dim2=2).mean(1) - table.mean((1, 2))
        hottest = (spread / 10).clamp_min(1).unsqueeze(1)
        temperatures: list[Tensor | None] = [hottest, hottest.sqrt(), *[None] * steps]
        equal = torch.full_like(fixed[part], 1 / few.shape[1])
        return newton.minimise(part, fixed[part], table, equal, temperatures[:steps])

    return _in_chunks(solve, few)


def _weights_with_others(
    newton: _Newton,
    fixed: Tensor,
    tables: QuadraticTables,
    few: Tensor,
    weights: Tensor,
    others: Tensor,
    pool: Pool,
    strength: float | Tensor,
    steps: int,
) -> Tensor:
    """(N, m + 1) weights of the classes ``few``, and one for all others together, that maximise the dual.

    Others in proportions r (``others``, and ``pool`` of them) are one more class: with c = r.c + entropy(r) and the
    forms of sum_j r_j w_j.
    """
    logit = torch.addcmul(torch.special.entr(others), others, fixed).sum(1, keepdim=True)
    fixed = torch.cat([fixed.gather(1, few), logit], 1)
    weights = torch.cat([weights, 1 - weights.sum(1, keepdim=True)], 1)

    def solve(part: slice) -> Tensor:
        table = strength * tables.restricted(few[part], part, pool)
        return newton.minimise(part, fixed[part], table, weights[part], [None] * steps)

    return _in_chunks(solve, few)


class _Newton(NamedTuple):
    """What the Newton steps of all rows and rounds share."""

    identity: Tensor
    """(m, m)."""
    lengths: Tensor
    """(L,) of a step, from 0 to 1."""
    slack: Tensor
    """(N, 1) minus the differences of F that are its rounding alone."""

    @classmethod
    def of(cls, fixed: Tensor, size: int) -> _Newton:
        """For rows with c = ``fixed`` (N, C) and ``size`` unknowns each."""
        like: dict[str, Any] = {"dtype": fixed.dtype, "device": fixed.device}
        slack = -4 * torch.finfo(fixed.dtype).eps * torch.linalg.vector_norm(fixed, torch.inf, 1, keepdim=True)
        return cls(torch.eye(size, **like), torch.linspace(0, 1, _LENGTHS, **like).square(), slack)

    def minimise(
        self, part: slice, fixed: Tensor, table: Tensor, tilt: Tensor, temperatures: list[Tensor | None]
    ) -> Tensor:
        """(n, m) weights after one step per temperature on F, with c = ``fixed`` (n, m) and K = ``table`` (n, m, m).

        The direction d solves (I + S K) d = s - t, S = diag(s) - s s' = Q Q', Q = diag(u) (I - u u'), u = sqrt(s). By
        Woodbury's identity d = s - t - Q (I + Q'KQ)^-1 Q'K (s - t), a symmetric system. The matrix I + B that is
        decomposed, B_ij = u_i u_j (K - Ks 1' - 1 (Ks)' + shift)_ij, equals I + Q'KQ on all vectors orthogonal to u, and
        u is an eigenvector of both; the shift keeps its eigenvalue above 1.

        All lengths are tried at once, zero among them, so that F never rises; where F differs by its rounding alone,
        the full step is the better one: only it converges. Weights below zero, which F does not mind, are cut off at
        the end.
        """
        column, slack, cross = self.lengths.unsqueeze(1), self.slack[part].unsqueeze(1), _multiply(table, tilt)
        shifted = table + table.diagonal(dim1=1, dim2=2).amax(1).view(-1, 1, 1)
        for temperature in temperatures:
            tilted = fixed - cross
            softmax = torch.softmax(tilted if temperature is None else tilted / temperature, 1)
            root = softmax.sqrt() if temperature is None else (softmax / temperature).sqrt()
            pulled = _multiply(table, softmax)
            inner = shifted - pulled.unsqueeze(2) - pulled.unsqueeze(1)
            system = torch.addcmul(self.identity, root.unsqueeze(2) * root.unsqueeze(1), inner)
            toward = pulled - cross
            toward = root * (toward - torch.bmm(softmax.unsqueeze(1), toward.unsqueeze(2)).squeeze(2))
            factor = torch.linalg.cholesky_ex(system).L
            answer = torch.cholesky_solve(toward.unsqueeze(2), factor).squeeze(2)
            direction = torch.addcmul(softmax - tilt, root, answer, value=-1)
            change = _multiply(table, direction)
            # F(t + x d) = logsumexp(c - Kt - x Kd) + x d.(Kt + x/2 Kd) + constant
            trials = torch.addcmul(tilted.unsqueeze(1), column, change.unsqueeze(1), value=-1)
            rise = torch.addcmul(cross.unsqueeze(1), column, change.unsqueeze(1), value=0.5)
            slope = torch.baddbmm(slack, rise, direction.unsqueeze(2)).squeeze(2)
            values = torch.addcmul(torch.logsumexp(trials, 2), self.lengths, slope)
            length = column.index_select(0, values.argmin(1))
            tilt, cross = torch.addcmul(tilt, length, direction), torch.addcmul(cross, length, change)
        tilt = tilt.clamp_min(0)
        return tilt / tilt.sum(1, keepdim=True)


def _multiply(matrices: Tensor, vectors: Tensor) -> Tensor:
    """(n, k) products of matrices (n, k, m) and vectors (n, m)."""
    return torch.bmm(matrices, vectors.unsqueeze(2)).squeeze(2)


def _in_chunks(solve: Callable[[slice], Tensor], few: Tensor) -> Tensor:
    """The rows of ``solve``, which needs a few tables (m, m) and stacks of trials per row, within the workspace."""
    size = few.shape[1] + 1
    return join_chunks([solve(part) for part in chunks(len(few), 8 * 4 * size * (size + _LENGTHS))])


NEWTON_STEPS = 50
CONJUGATE_STEPS = 50
_CONVERGED_LENGTHS = 12
_CONJUGATE_ACCURACY = 1e-3
"""Of a Newton step's system: the next step mends what is left, at the cost of as few products as this took."""


class ConvergedTilt(NamedTuple):
    """Where the search ended."""

    tilt: Tensor
    """(N, C) t, on the simplex."""
    softmax: Tensor
    """(N, C) s = softmax(c - K t), equal to t at the minimum."""
    value: Tensor
    """(N,) F(t)."""


def converged_tilt(logits: Tensor, table: Tensor, start: Tensor, *, enough: float = 0.0) -> ConvergedTilt:
    """Minimise F(t) = logsumexp_j(z_j + 1/2 (e_j - t)' K (e_j - t)) for every row.

    Args:
        logits: (N, C) z.
        table: (C, C) K = lambda W Sigma W', symmetric and positive semi-definite.
        start: (N, C) tilts to start from, on the simplex.
        enough: end where F is at most half of this above its minimum; by default where rounding stops the search.

    Example:
        >>> K = torch.tensor([[2.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
        >>> found = converged_tilt(torch.zeros(1, 2, dtype=torch.float64), K, torch.tensor([[1.0, 0.0]]).double())
        >>> found.tilt, found.value  # log 2 + 1/2
        (tensor([[0.5000, 0.5000]], dtype=torch.float64), tensor([1.1931], dtype=torch.float64))
    """
    fixed, epsilon = logits + table.diagonal() / 2, torch.finfo(logits.dtype).eps
    tilt, cross = start, start @ table
    lengths = torch.linspace(0, 1, _CONVERGED_LENGTHS, dtype=logits.dtype, device=logits.device).square().view(-1, 1, 1)
    # A tilt is never better known than to the rounding of its logits, which are large where K is.
    close, slack = epsilon**0.75, 8 * epsilon * torch.linalg.vector_norm(fixed, torch.inf, 1)
    limit = (slack.clamp_min(close).square() * table.diagonal().max()).clamp_min(enough)
    for _ in range(NEWTON_STEPS):
        tilted = fixed - cross
        softmax = torch.softmax(tilted, 1)
        residual = softmax - tilt
        pulled = residual @ table
        # r'Kr is twice the fall of F that is left, where K is small.
        if bool(((residual * pulled).sum(1) <= limit).all()):
            break
        direction, change = tilt_system(softmax, residual, table, accuracy=_CONJUGATE_ACCURACY)
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
        # At most 1 but for rounding: d'K (I + S K) d >= d'K d >= r'K r.
        length = (norm / (change * applied).sum(1, keepdim=True).clamp_min(tiny)).clamp_max(1)
        # A row that has converged stays as it is: further steps would divide rounding by rounding.
        length = torch.where(norm > enough, length, 0)
        solution, image = torch.addcmul(solution, length, direction), torch.addcmul(image, length, change)
        residual, pulled = residual - length * applied, pulled - length * image_of
        previous, norm = norm, (residual * pulled).sum(1, keepdim=True).clamp_min(0)
        if bool((norm <= enough).all()):
            break
        ratio = torch.where(norm > enough, norm / previous.clamp_min(tiny), 0)
        direction, change = residual + ratio * direction, pulled + ratio * change
    return solution, image
