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

from isda._utils.devices import in_transform
from isda.functional.grouping import chunks, join_chunks

TILT_STEPS = 4
FEW = 20
"""Unknowns of a row's Newton steps: classes, or 19 classes and all the others in fixed proportions."""
MANY_ROWS = 4096
"""With more rows than this, pixels that is, half as many unknowns: the systems cost as much as the rest of the step."""
_LENGTHS = 8


class QuadraticTables(NamedTuple):
    """The quadratic forms of a batch, of centred weights w_j: everything F(t) needs besides the logits."""

    diagonal: Tensor
    """(N, C) w_j' Sigma_i w_j."""
    product: Callable[[Tensor], Tensor]
    """Maps tilts (N, C) to (N, C) w_j' Sigma_i wbar_i."""
    product_of_few: Callable[[Tensor, Tensor], Tensor]
    """The same for tilts that are zero but for the weights (N, m) of few classes (N, m)."""
    restricted: Callable[[Tensor, slice], Tensor]
    """Maps few classes (n, m) of each row in a range of rows to (n, m, m) w_j' Sigma_i w_k."""

    def variance(self, tilt: Tensor) -> Tensor:
        """(N, C) (w_j - wbar_i)' Sigma_i (w_j - wbar_i), differentiable in W at a fixed tilt."""
        cross = self.product(tilt)
        return (self.diagonal - 2 * cross + (tilt * cross).sum(1, keepdim=True)).clamp_min(0)


@torch.no_grad()
def find_tilt(
    logits: Tensor, tables: QuadraticTables, start: Tensor, strength: float | Tensor, steps: int = TILT_STEPS
) -> Tensor:
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

    Returns:
        (N, C).
    """
    fixed, num_classes = add_scaled(logits, tables.diagonal, strength / 2), logits.shape[1]
    if start.ndim == 1:
        few = start.unsqueeze(1)
        weights = torch.ones_like(few, dtype=logits.dtype)
        start, cross = spread(fixed, few, weights), tables.product_of_few(few, weights)
    else:
        cross = tables.product(start)
    if steps == 0:
        return start
    best = start, _evaluate(fixed, start, cross, strength)[1]
    size = min(num_classes, FEW if len(logits) <= MANY_ROWS else FEW // 2)
    newton = _Newton.of(fixed, size)
    if num_classes <= size:
        everything = torch.arange(num_classes, device=logits.device).expand_as(fixed)
        tilt = _weights_of_few(newton, fixed, tables, everything, strength, steps)
        return _better(best, tilt, _evaluate(fixed, tilt, tables.product(tilt), strength)[1])[0]
    # Logits at a quarter of the way from equal weights, where K t = 0, to the start: about where the minimum lies.
    few = add_scaled(fixed, cross, -strength / 4).topk(size, 1, sorted=False).indices
    weights = _weights_of_few(newton, fixed.gather(1, few), tables, few, strength, max(1, steps // 2))
    tilt = spread(fixed, few, weights)
    tilted, value = _evaluate(fixed, tilt, tables.product_of_few(few, weights), strength)
    best = _better(best, tilt, value)
    if steps == 1:
        return best[0]
    few = torch.maximum(torch.softmax(tilted, 1), tilt).topk(size - 1, 1, sorted=False).indices
    others = torch.softmax(tilted.scatter(1, few, -torch.inf), 1)
    shared = tables.product(others)
    weights = _weights_with_others(
        newton, fixed, tables, few, tilt.gather(1, few), others, shared, strength, steps - steps // 2
    )
    weights, share = weights[:, :-1], weights[:, -1:]
    tilt = (share * others).scatter(1, few, weights)
    cross = torch.addcmul(tables.product_of_few(few, weights), share, shared)
    return _better(best, tilt, _evaluate(fixed, tilt, cross, strength)[1])[0]


def spread(like: Tensor, few: Tensor, weights: Tensor) -> Tensor:
    """(N, C) zeros but for the weights (N, m) of few classes (N, m)."""
    zeros = torch.zeros_like(like)
    # torch.vmap has no rule for the operation in place.
    return (
        zeros.scatter(1, few, weights)
        if not torch.compiler.is_compiling() and in_transform()
        else zeros.scatter_(1, few, weights)
    )


def add_scaled(first: Tensor, second: Tensor, scale: float | Tensor) -> Tensor:
    """Add ``scale * second``; the scale is a tensor without dimensions where a graph is recorded."""
    if isinstance(scale, Tensor):
        return torch.addcmul(first, second, scale.to(first.dtype))
    return torch.add(first, second, alpha=scale)


def _evaluate(fixed: Tensor, tilt: Tensor, cross: Tensor, strength: float | Tensor) -> tuple[Tensor, Tensor]:
    """(N, C) tilted logits c - K t and (N,) values F(t), from the forms w_j' Sigma wbar = ``cross``."""
    tilted = add_scaled(fixed, cross, -strength)
    return tilted, add_scaled(torch.logsumexp(tilted, 1), (tilt * cross).sum(1), strength / 2)


def _better(best: tuple[Tensor, Tensor], tilt: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """The better of two tilts per row, and its value; the first where they are equal or the second is not finite."""
    better = value < best[1]
    return torch.where(better.unsqueeze(1), tilt, best[0]), torch.where(better, value, best[1])


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
    shared: Tensor,
    strength: float | Tensor,
    steps: int,
) -> Tensor:
    """(N, m + 1) weights of the classes ``few``, and one for all others together, that maximise the dual.

    Others in proportions r (``others``), K r / lambda = ``shared``, are one more class: with c = r.c + entropy(r) and
    the forms of sum_j r_j w_j.
    """
    logit = torch.addcmul(torch.special.entr(others), others, fixed).sum(1, keepdim=True)
    column = strength * torch.cat([shared.gather(1, few), (others * shared).sum(1, keepdim=True)], 1)
    fixed = torch.cat([fixed.gather(1, few), logit], 1)
    weights = torch.cat([weights, 1 - weights.sum(1, keepdim=True)], 1)

    def solve(part: slice) -> Tensor:
        table = torch.cat([strength * tables.restricted(few[part], part), column[part, None, :-1]], 1)
        table = torch.cat([table, column[part].unsqueeze(2)], 2)
        return newton.minimise(part, fixed[part], table, weights[part], [None] * steps)

    return _in_chunks(solve, few)


class _Newton(NamedTuple):
    """What the Newton steps of all rows and rounds share."""

    identity: Tensor
    """(m, m)."""
    lengths: Tensor
    """(L,) of a step, from 0 to 1."""
    slack: Tensor
    """(N, 1) differences of F that are its rounding alone."""

    @classmethod
    def of(cls, fixed: Tensor, size: int) -> _Newton:
        """For rows with c = ``fixed`` (N, C) and ``size`` unknowns each."""
        like: dict[str, Any] = {"dtype": fixed.dtype, "device": fixed.device}
        slack = 4 * torch.finfo(fixed.dtype).eps * torch.linalg.vector_norm(fixed, torch.inf, 1, keepdim=True)
        return cls(torch.eye(size, **like), torch.linspace(0, 1, _LENGTHS, **like).square(), slack)

    def minimise(
        self, part: slice, fixed: Tensor, table: Tensor, tilt: Tensor, temperatures: list[Tensor | None]
    ) -> Tensor:
        """(n, m) weights after one step per temperature on F, with c = ``fixed`` (n, m) and K = ``table`` (n, m, m).

        The direction d solves (I + S K) d = s - t, S = diag(s) - s s'. All lengths are tried at once, zero among them,
        so that F never rises; where F differs by its rounding alone, the full step is the better one: only it
        converges. Weights below zero, which F does not mind, are cut off at the end.
        """
        column, slack, cross = self.lengths.unsqueeze(1), self.slack[part], _multiply(table, tilt)
        for temperature in temperatures:
            tilted = fixed - cross
            softmax = torch.softmax(tilted if temperature is None else tilted / temperature, 1)
            scale = softmax if temperature is None else softmax / temperature
            system = torch.addcmul(self.identity, scale.unsqueeze(2), table - _multiply(table, softmax).unsqueeze(1))
            direction = torch.linalg.solve_ex(system, (softmax - tilt).unsqueeze(2)).result.squeeze(2)
            change = _multiply(table, direction)
            # F(t + x d) = logsumexp(c - Kt - x Kd) + x d.(Kt + x/2 Kd) + constant
            trials = torch.addcmul(tilted.unsqueeze(1), column, change.unsqueeze(1), value=-1)
            rise = torch.addcmul(cross.unsqueeze(1), column, change.unsqueeze(1), value=0.5)
            values = torch.addcmul(torch.logsumexp(trials, 2), self.lengths, _multiply(rise, direction) - slack)
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
