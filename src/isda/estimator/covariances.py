"""Covariances of fixed rows, in the form that makes a bound over all of them cheap.

Sigma_c = own_c S_c + pooled_c P + diag(d_c): the class's own covariance S_c, one matrix P for all classes, variances.
S_c is never made. With logits z = W x + b, R[c, j] = (w_j - w_c)' S_c (w_j - w_c) is the variance of the margin
z_j - z_c over the rows of the class, so that it costs N x C numbers beside the logits and no product of its own.
Every R[c, j] is a quadratic form of W, and ``pull`` is its gradient: linear in W at fixed cotangents.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from isda.estimator.rows import Rows, sum_by_class
from isda.functional.bounds import margin_from_gram
from isda.functional.quadratic import centred

__all__ = ["Pull", "RowCovariances"]


class Pull(NamedTuple):
    """A gradient in two parts: with respect to the weights (C, A), and to the logits (N, C) of all rows."""

    weight: Tensor | None
    logits: Tensor | None


class RowCovariances(NamedTuple):
    """Sigma_c = own_c S_c + pooled_c P + diag(d_c) for the classes of given rows; a part that is None is zero."""

    rows: Rows
    own: Tensor | None = None
    """(C,)."""
    pooled: Tensor | None = None
    """(C,)."""
    matrix: Tensor | None = None
    """(A, A) the matrix P; None for the identity."""
    diagonal: Tensor | None = None
    """(C, A)."""
    average: Tensor | None = None
    """(A, A) about their mean over all rows: for an optimiser to know which directions are steep."""

    @property
    def one_for_all(self) -> bool:
        """Whether every class has the same covariance, a multiple of P."""
        return self.own is None and self.diagonal is None

    # -- the published bound: margins from the class's own weight --------------------------------------------------

    def margins(self, weight: Tensor, logits: Tensor) -> Tensor:
        """(C, C) table R[c, j] = (w_j - w_c)' Sigma_c (w_j - w_c)."""
        weight, table = centred(weight), weight.new_zeros(len(weight), len(weight))
        if self.own is not None:
            spread = self._spread(self._row_margins(logits))
            table += self._share(self.own).unsqueeze(1) * sum_by_class(
                self.rows.counts.unsqueeze(1) * spread.square(), self.rows
            )
        if self.pooled is not None:
            table += self.pooled.unsqueeze(1) * margin_from_gram(self._product(weight) @ weight.t())
        if self.diagonal is not None:
            own = self.diagonal * weight
            squares = self.diagonal @ weight.square().t() - 2 * own @ weight.t() + (own * weight).sum(1, keepdim=True)
            table += squares.clamp_min(0).fill_diagonal_(0)
        return table

    def pull_margins(self, weight: Tensor, logits: Tensor, table: Tensor) -> Pull:
        """The gradient of 1/2 sum_cj table[c, j] R[c, j]."""
        weight, by_weight, by_logits = centred(weight), None, None
        if self.own is not None:
            spread = self._spread(self._row_margins(logits))
            share = (self._share(self.own).unsqueeze(1) * table).index_select(0, self.rows.labels)
            by_logits = share.mul_(spread).mul_(self.rows.counts.unsqueeze(1))
            by_logits.scatter_add_(1, self.rows.labels.unsqueeze(1), -by_logits.sum(1, keepdim=True))
        if self.pooled is not None:
            by_weight = _laplacian(self.pooled.unsqueeze(1) * table) @ self._product(weight)
        if self.diagonal is not None:
            own = self.diagonal * weight
            toward = (table.t() @ self.diagonal) * weight - table.t() @ own
            toward -= self.diagonal * (table @ weight) - own * table.sum(1, keepdim=True)
            by_weight = toward if by_weight is None else by_weight + toward
        return Pull(by_weight, by_logits)

    # -- the tilted bound: margins from a mean weight that differs by row --------------------------------------------

    def blocks(self) -> list[tuple[int, slice]]:
        """Ranges of rows with one covariance, and a class that has it."""
        return [(0, slice(0, len(self.rows.labels)))] if self.one_for_all else list(self.rows.class_slices())

    def gram(self, weight: Tensor, logits: Tensor) -> Callable[[int, slice], Tensor]:
        """A function that makes the (C, C) table W Sigma_c W' of a block."""
        weight = centred(weight)
        common = None if self.pooled is None else self._product(weight) @ weight.t()

        def table(index: int, part: slice) -> Tensor:
            made = weight.new_zeros(len(weight), len(weight))
            if self.own is not None:
                spread, counts = self._block_spread(logits, part), self.rows.counts[part]
                made = made.addmm(spread.t(), spread * (counts * self.own[index] / counts.sum()).unsqueeze(1))
            if self.pooled is not None and common is not None:
                made = torch.add(made, common, alpha=float(self.pooled[index]))
            if self.diagonal is not None:
                made = made.addmm(weight * self.diagonal[index], weight.t())
            return made

        return table

    def pull_gram(
        self, weight: Tensor, logits: Tensor
    ) -> tuple[Callable[[int, slice, Tensor], None], Callable[[], Pull]]:
        """Collect the gradient of 1/2 sum_blocks tr(L W Sigma W'): give each block's symmetric L (C, C), then ask."""
        weight = centred(weight)
        common = weight.new_zeros(len(weight), len(weight)) if self.pooled is not None else None
        by_weight = torch.zeros_like(weight) if self.diagonal is not None else None
        by_logits = torch.zeros_like(logits) if self.own is not None else None

        def give(index: int, part: slice, laplacian: Tensor) -> None:
            if self.own is not None and by_logits is not None:
                counts = self.rows.counts[part]
                share = (counts * self.own[index] / counts.sum()).unsqueeze(1)
                by_logits[part] = self._block_spread(logits, part) @ laplacian * share
            if self.pooled is not None and common is not None:
                common.add_(laplacian, alpha=float(self.pooled[index]))
            if self.diagonal is not None and by_weight is not None:
                by_weight.addmm_(laplacian, weight * self.diagonal[index])

        def ask() -> Pull:
            if common is None:
                return Pull(by_weight, by_logits)
            made = common @ self._product(weight)
            return Pull(made if by_weight is None else made + by_weight, by_logits)

        return give, ask

    # -- parts -------------------------------------------------------------------------------------------------------

    def _product(self, weight: Tensor) -> Tensor:
        return weight if self.matrix is None else weight @ self.matrix

    def _share(self, own: Tensor) -> Tensor:
        """(C,) own_c / n_c."""
        return own / sum_by_class(self.rows.counts, self.rows).clamp_min(torch.finfo(own.dtype).tiny)

    def _row_margins(self, logits: Tensor) -> Tensor:
        return logits - logits.gather(1, self.rows.labels.unsqueeze(1))

    def _spread(self, values: Tensor) -> Tensor:
        """(N, C) values minus their mean over the rows of the class."""
        counts = self.rows.counts.unsqueeze(1)
        total = sum_by_class(self.rows.counts, self.rows).clamp_min(torch.finfo(values.dtype).tiny)
        means = sum_by_class(values * counts, self.rows) / total.unsqueeze(1)
        return values - means.index_select(0, self.rows.labels)

    def _block_spread(self, logits: Tensor, part: slice) -> Tensor:
        counts, values = self.rows.counts[part].unsqueeze(1), logits[part]
        return values - (values * counts).sum(0) / counts.sum()


def _laplacian(table: Tensor) -> Tensor:
    """sum_cj table[c, j] (e_j - e_c)(e_j - e_c)'."""
    both = table + table.t()
    return torch.diag(both.sum(1)) - both
