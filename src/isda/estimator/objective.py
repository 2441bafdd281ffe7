"""The convex objective of a linear classifier on fixed rows: a bound of the expected loss, and L2.

    f(W, b) = sum_i u_i L_i(W, b) + penalty / 2 |W|^2,    sum_i u_i = 1,

where L_i is the published bound ("jensen"), logsumexp_j(z_ij + lambda/2 R[y_i, j]) - z_iy, or the converged tilted one,
min_t F_i(t) - z_iy. Offsets o_yj of margins, where there are any, are added to z_ij. Each z_ij is linear and each R a
convex quadratic form in W: f is convex, and with a penalty it has one minimum. With C classes there are C rows
of weights; with two, scikit-learn's single row w = w_1 - w_0.

Logits (N, C) are stored class by class, as the transpose of a contiguous (C, N): reductions over few classes are then
many times faster. A probability close to 1 is not subtracted from 1: the gradient of a row that is classified well is
the sum of its other probabilities, so that float32 suffices where the loss is small.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from isda.estimator.covariances import ClassRows, RowCovariances, WeightLogitGradient, sum_by_class
from isda.estimator.tilts import approximate_tilt
from isda.functional.tilt import ConvergedTilt, converged_tilt, tilt_system


class Evaluation(NamedTuple):
    """The objective at a point."""

    value: float
    gradient: Tensor  # (K, A + 1)
    curvature: float
    """Mean over classes of sum_i u_i s_ij (1 - s_ij): about the factor of the rows' second moments in the Hessian."""
    spread: float
    """About the factor of lambda Sigma in the Hessian of a class."""


class ConvexObjective:
    """Value, gradient and Hessian products of f at parameters (K, A + 1), whose last column is b.

    Args:
        rows: the rows.
        covariances: of their classes.
        strength: lambda.
        penalty: of |W|^2 / 2; 1 / (C N) is scikit-learn's C.
        bound: "jensen" or "tilted".
        offset: (C, C) o_yj with o_yy = 0, which the bound has beside z_ij; None for zeros.

    Attributes:
        tilt_accuracy: how far, in nats of f, tilts may be from the best ones; 0 for as near as rounding allows.
    """

    def __init__(
        self,
        rows: ClassRows,
        covariances: RowCovariances,
        *,
        strength: float,
        penalty: float,
        bound: str,
        offset: Tensor | None = None,
    ) -> None:
        self.rows, self.covariances = rows, covariances
        self.strength, self.penalty, self.tilted = strength, penalty, bound == "tilted"
        self.tilt_accuracy = 0.0
        self._offset = None if offset is None else offset.to(rows.inputs.dtype)
        self._tilts: dict[int, Tensor] = {}

    def published(self) -> ConvexObjective:
        """The same with the published bound."""
        settings = {"strength": self.strength, "penalty": self.penalty}
        return ConvexObjective(self.rows, self.covariances, **settings, bound="jensen", offset=self._offset)

    @property
    def shape(self) -> tuple[int, int]:
        """(K, A + 1) of the parameters."""
        classes = self.rows.num_classes
        return 1 if classes == 2 else classes, self.rows.inputs.shape[1] + 1

    def evaluate(self, parameters: Tensor, logits: Tensor | None = None, *, limit: float = torch.inf) -> Evaluation:
        """F, its gradient, and the sizes of the parts of its Hessian.

        ``logits`` (N, C) are those of the parameters, if they are known. Where F is above ``limit``, the gradient is
        left out, an empty tensor.
        """
        weight = self._weights(parameters)
        logits = self.logits(parameters) if logits is None else logits
        share = self.rows.loss_weights.unsqueeze(1)
        pull: WeightLogitGradient | None = None
        if self.tilted and self.strength:
            values, by_logits, pull = self._tilted_bound(weight, logits)
            self.rows.fill_targets(by_logits, None)
            others = by_logits.sum(1, keepdim=True)
        else:
            values, by_logits, others = self._cross_entropy(logits, weight)
        free = parameters[:, :-1]
        value = float(self.rows.loss_weights.double() @ values.double())
        value += self.penalty / 2 * float(free.square().sum(dtype=torch.float64))
        if not value <= limit:
            return Evaluation(value, parameters.new_empty(0), 0.0, 0.0)
        # The target's own probability is 1 - others.
        curvature = share * (2 * others - others.square() - by_logits.square().sum(1, keepdim=True))
        by_logits *= share
        spread = curvature.sum()
        if self.strength and not self.tilted:
            table = sum_by_class(by_logits, self.rows).mul_(self.strength)
            pull, spread = self.covariances.pull_margins(weight, logits, table), 2 * (share * others).sum()
        self.rows.fill_targets(by_logits, -share * others)
        gradient = self._gradient(by_logits, pull)
        gradient[:, :-1].add_(free, alpha=self.penalty)
        classes = self.rows.num_classes
        return Evaluation(value, gradient, float(curvature.sum()) / classes, float(spread) / classes)

    def hessian_product(self, parameters: Tensor) -> Callable[[Tensor], Tensor]:
        """The map of directions (K, A + 1) to the Hessian at ``parameters`` times them."""
        weight, logits = self._weights(parameters), self.logits(parameters)
        product = self._tilted_hessian if self.tilted and self.strength else self._jensen_hessian
        curvature = product(weight, logits)

        def apply(direction: Tensor) -> Tensor:
            image = curvature(direction)
            image[:, :-1].add_(direction[:, :-1], alpha=self.penalty)
            return image

        return apply

    # -- the published bound -----------------------------------------------------------------------------------------

    def _cross_entropy(self, logits: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(N,) losses, (N, C) probabilities with zeros for the targets, and (N, 1) their sums."""
        augmented, own = self._augmented(weight, logits), self.rows.targets_of(logits)
        largest = augmented.amax(1, keepdim=True)
        terms = self.rows.fill_targets((augmented - largest).exp_(), None)
        rest, own = terms.sum(1, keepdim=True), own - largest
        total = rest + own.exp()
        terms.div_(total)
        others = rest.div_(total)
        values = torch.where(others < 0.5, -torch.log1p(-others), total.log() - own)
        return values.squeeze(1), terms, others

    def _augmented(self, weight: Tensor, logits: Tensor) -> Tensor:
        """(N, C) z_ij + o_yj + lambda/2 R[y, j]."""
        table = self._offset
        if self.strength:
            margins = self.covariances.margins(weight, logits).mul_(self.strength / 2)
            table = margins if table is None else margins.add_(table)
        return logits if table is None else logits + self.rows.by_row(table)

    def _jensen_hessian(self, weight: Tensor, logits: Tensor) -> Callable[[Tensor], Tensor]:
        softmax = torch.softmax(self._augmented(weight, logits), 1) * self.rows.loss_weights.unsqueeze(1)
        total = self.rows.loss_weights.unsqueeze(1).clamp_min(torch.finfo(logits.dtype).tiny)

        def apply(direction: Tensor) -> Tensor:
            turn, change = self._weights(direction), self.logits(direction)
            if not self.strength:
                change = softmax * (change - (softmax * change).sum(1, keepdim=True) / total)
                return self._gradient(change, None)
            margins, pull = self.covariances.margins, self.covariances.pull_margins
            # R is a quadratic form: its derivative along a direction follows from its values.
            rise = (margins(weight + turn, logits + change) - margins(weight - turn, logits - change)) / 2
            moved = torch.add(change, self.rows.by_row(rise), alpha=self.strength / 2)
            moved = softmax * (moved - (softmax * moved).sum(1, keepdim=True) / total)
            first = pull(weight, logits, sum_by_class(moved, self.rows).mul_(self.strength))
            second = pull(turn, change, sum_by_class(softmax, self.rows).mul_(self.strength))
            return self._gradient(moved, first, second)

        return apply

    # -- the tilted bound --------------------------------------------------------------------------------------------

    def _tilted_bound(self, weight: Tensor, logits: Tensor) -> tuple[Tensor, Tensor, WeightLogitGradient]:
        """(N,) losses, (N, C) probabilities, and the gradient through the covariances."""
        gram = self.covariances.gram(weight, logits)
        add, total = self.covariances.pull_gram(weight, logits)
        values, softmax = logits.new_empty(len(logits)), torch.empty_like(logits)
        for index, part in self.covariances.blocks():
            solution = self._solve_tilt(index, part, logits, gram(index, part))
            values[part], softmax[part] = solution.value, solution.softmax
            add(index, part, self.strength * self._spread_of(part, solution))
        return values.sub_(self.rows.targets_of(logits).squeeze(1)), softmax, total()

    def _solve_tilt(
        self, index: int, part: slice, logits: Tensor, gram: Tensor, *, exact: bool = False
    ) -> ConvergedTilt:
        shifted = logits if self._offset is None else logits + self.rows.by_row(self._offset)
        shifted, start = shifted[part], self._tilts.get(index)
        if start is None:
            start = torch.softmax(shifted, 1)
        if exact or not self.tilt_accuracy:
            solution = converged_tilt(shifted, self.strength * gram, start)
        else:
            weights = self.rows.loss_weights[part]
            enough = self.tilt_accuracy * float(weights.sum())
            solution = approximate_tilt(shifted, self.strength * gram, start, weights, enough)
        self._tilts[index] = solution.tilt
        return solution

    def _spread_of(self, part: slice, solution: ConvergedTilt) -> Tensor:
        """(C, C) sum_i u_i sum_j s_ij (e_j - t_i)(e_j - t_i)'."""
        share = self.rows.loss_weights[part].unsqueeze(1)
        softmax, tilt = solution.softmax, solution.tilt
        cross = (share * softmax).t() @ tilt
        return torch.diag((share * softmax).sum(0)) - cross - cross.t() + (share * tilt).t() @ tilt

    def _tilted_hessian(self, weight: Tensor, logits: Tensor) -> Callable[[Tensor], Tensor]:
        gram = self.covariances.gram(weight, logits)
        blocks = self.covariances.blocks()
        tables = {index: gram(index, part) for index, part in blocks}
        solutions = {index: self._solve_tilt(index, part, logits, tables[index], exact=True) for index, part in blocks}

        def apply(direction: Tensor) -> Tensor:
            turn, change = self._weights(direction), self.logits(direction)
            above = self.covariances.gram(weight + turn, logits + change)
            below = self.covariances.gram(weight - turn, logits - change)
            add_first, total_first = self.covariances.pull_gram(weight, logits)
            add_second, total_second = self.covariances.pull_gram(turn, change)
            moved = torch.empty_like(logits)
            for index, part in blocks:
                tilt, softmax, _ = solutions[index]
                rise = self.strength * (above(index, part) - below(index, part)) / 2
                # t = softmax(c - K t) moves by dt = S (dc - dK t - K dt).
                push = change[part] + rise.diagonal() / 2 - tilt @ rise
                push = _times_softmax_covariance(softmax, push)
                _, image = tilt_system(softmax, push, self.strength * tables[index])
                # The system leaves the null space of K open; dt = S (dc - dK t) - S (K dt) determines it.
                step = push - _times_softmax_covariance(softmax, image)
                share = self.rows.loss_weights[part].unsqueeze(1)
                moved[part] = share * step
                cross = (share * step).t() @ tilt
                add_first(index, part, self.strength * (torch.diag((share * step).sum(0)) - cross - cross.t()))
                add_second(index, part, self.strength * self._spread_of(part, solutions[index]))
            return self._gradient(moved, total_first(), total_second())

        return apply

    # -- parameters --------------------------------------------------------------------------------------------------

    def logits(self, parameters: Tensor) -> Tensor:
        """(N, C), linear in the parameters."""
        if len(parameters) == 1:
            parameters = torch.cat([torch.zeros_like(parameters), parameters])
        return torch.addmm(parameters[:, -1:], parameters[:, :-1], self.rows.inputs.t()).t()

    @staticmethod
    def _weights(parameters: Tensor) -> Tensor:
        """(C, A) of all classes."""
        weight = parameters[:, :-1]
        return torch.cat([torch.zeros_like(weight), weight]) if len(weight) == 1 else weight

    def _gradient(self, by_logits: Tensor, *pulls: WeightLogitGradient | None) -> Tensor:
        """(K, A + 1) from the gradients with respect to logits and weights."""
        for pull in pulls:
            if pull is not None and pull.logits is not None:
                by_logits = by_logits + pull.logits
        gradient = by_logits.new_empty(by_logits.shape[1], self.rows.inputs.shape[1] + 1)
        gradient[:, :-1] = by_logits.t() @ self.rows.inputs
        for pull in pulls:
            if pull is not None and pull.weight is not None:
                gradient[:, :-1] += pull.weight
        gradient[:, -1] = by_logits.sum(0)
        return gradient[1:] if self.rows.num_classes == 2 else gradient


def _times_softmax_covariance(softmax: Tensor, vectors: Tensor) -> Tensor:
    """(N, C) S v, S = diag(s) - s s'."""
    return softmax * (vectors - (softmax * vectors).sum(1, keepdim=True))
