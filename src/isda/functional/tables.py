"""The quadratic forms w_j' Sigma_i w_k of a batch: what the tilted bound and the search for its tilt need.

The forms of row i with its covariance Sigma_i come from C x C tables per matrix (`GramTables`: few classes, many rows)
or from products per row (`RowTables`: many classes), whichever is cheaper. For full matrices W Sigma_k, which the
variances need anyway, is kept while it fits the workspace; every other form is then a product with rows of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from isda._utils.devices import in_transform, on_host
from isda.functional.grouping import CACHE_BYTES, Groups, chunks, join_chunks
from isda.functional.quadratic import ProjectedWeights, centred, product_by_group


class CovarianceProtocol(Protocol):
    """What the bounds ask of a covariance model; see isda.covariance.CovarianceModel."""

    def variances(self, weight: Tensor, matrices: Tensor) -> Tensor:
        """(K, C) table w_j' Sigma_k w_j."""

    def gram(self, weight: Tensor, matrices: Tensor) -> Tensor:
        """(K, C, C) tables W Sigma_k W'."""

    def transform(self, groups: Groups) -> Callable[[Tensor], Tensor]:
        """The map of (N, A) rows v to Sigma v."""

    def transform_stacks(self, rows: Tensor, matrices: Tensor) -> Tensor:
        """(n, m, A) rows Sigma_k v for m vectors v per matrix k."""

    def projected(self, weight: Tensor, matrices: Tensor) -> ProjectedWeights | None:
        """W Sigma_k of the matrices, where the variances need it and it fits the workspace."""

    def prefers_gram(self, rows: int, matrices: int) -> bool:
        """Whether tables per matrix are cheaper than products per row."""

    def groups(self, classes: Tensor) -> Groups:
        """Rows grouped by the matrix that their class uses."""

    def buffers(self) -> Iterator[Tensor]:
        """The statistics that the operations above read."""


class Pool(NamedTuple):
    """The classes of a row in fixed proportions r as one class with the weight sum_j r_j w_j."""

    mean: Tensor
    """(N, C) r, or (N, A) sum_j r_j w_j."""
    image: Tensor
    """(N, C) forms w_k' Sigma_i sum_j r_j w_j, or (N, A) Sigma_i sum_j r_j w_j."""

    def border(self, table: Tensor, column: Tensor, part: slice) -> Tensor:
        """(n, m + 1, m + 1) forms (n, m, m) of few classes with the pool, whose forms with them are (n, m), as last."""
        own = (self.mean[part] * self.image[part]).sum(1, keepdim=True)
        table = torch.cat([table, column.unsqueeze(1)], 1)
        return torch.cat([table, torch.cat([column, own], 1).unsqueeze(2)], 2)


class QuadraticTables(ABC):
    """The quadratic forms of a batch, of centred weights w_j: everything F(t) needs besides the logits.

    A memo of a tilt is what its forms follow from cheaply, for `variance`: None where there is none.
    """

    diagonal: Tensor
    """(N, C) w_j' Sigma_i w_j."""

    @abstractmethod
    def product(self, tilt: Tensor) -> Tensor:
        """(N, C) w_j' Sigma_i wbar_i for tilts (N, C); differentiable in W at a fixed tilt, and in the tilt."""

    @abstractmethod
    def product_of_few(self, few: Tensor, weights: Tensor) -> tuple[Tensor, Tensor | None]:
        """Forms and memos of tilts that are zero but for the weights (N, m) of few classes (N, m)."""

    @abstractmethod
    def restricted(self, few: Tensor, part: slice, pool: Pool | None = None) -> Tensor:
        """(n, m, m) w_j' Sigma_i w_k between few classes (n, m) of each row in a range of rows.

        With a pool (n, m + 1, m + 1): it is the last class.
        """

    @abstractmethod
    def pool(self, shares: Tensor) -> Pool:
        """Classes in the proportions ``shares`` (N, C) as one class."""

    @abstractmethod
    def product_with_pool(
        self, few: Tensor, weights: Tensor, pool: Pool, share: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Forms and memos of the weights (N, m) of few classes and the ``share`` (N, 1) of the pool."""

    def variance(self, tilt: Tensor, memo: Tensor | None = None) -> Tensor:
        """(N, C) (w_j - wbar_i)' Sigma_i (w_j - wbar_i), differentiable in W at a fixed tilt; with a memo, once."""
        cross = self.product(tilt) if memo is None else self.known_product(tilt, memo)
        return (self.diagonal - 2 * cross + (tilt * cross).sum(1, keepdim=True)).clamp_min(0)

    def known_product(self, tilt: Tensor, memo: Tensor) -> Tensor:
        """The product of a constant tilt whose memo is known."""
        return self.product(tilt)


def quadratic_tables(
    weight: Tensor, covariance: CovarianceProtocol, groups: Groups, *, once: bool = False
) -> QuadraticTables:
    """The forms of each row's covariance, by C x C tables per matrix or by products per row, whichever is cheaper.

    ``once`` is for forms that are differentiated at most once, in the weight alone.
    """
    weight = centred(weight)
    if covariance.prefers_gram(len(groups.slot), len(groups.classes)):
        return GramTables(covariance.gram(weight, groups.classes), groups)
    projected = covariance.projected(weight, groups.classes) if once else None
    if projected is not None:
        return ProjectedRowTables(weight, projected, groups)
    return RowTables(weight, covariance, groups)


def spread(like: Tensor, few: Tensor, weights: Tensor) -> Tensor:
    """(N, C) zeros but for the weights (N, m) of few classes (N, m)."""
    zeros = torch.zeros_like(like)
    # torch.vmap has no rule for the operation in place.
    return (
        zeros.scatter(1, few, weights)
        if not torch.compiler.is_compiling() and in_transform()
        else zeros.scatter_(1, few, weights)
    )


class GramTables(QuadraticTables):
    """Forms from the tables (K, C, C) of the matrices of the groups."""

    def __init__(self, gram: Tensor, groups: Groups) -> None:
        self._gram, self._groups = gram, groups
        self.diagonal = gram.diagonal(dim1=1, dim2=2)[groups.slot]

    def product(self, tilt: Tensor) -> Tensor:
        """w_j' Sigma_i wbar_i."""
        return product_by_group(tilt, self._gram, self._groups)

    def product_of_few(self, few: Tensor, weights: Tensor) -> tuple[Tensor, None]:
        """Forms and memos of few classes."""
        return self.product(spread(self.diagonal, few, weights)), None

    def restricted(self, few: Tensor, part: slice, pool: Pool | None = None) -> Tensor:
        """Forms between few classes."""
        slot, size = self._groups.slot[part], self._gram.shape[1]
        if few.shape[1] == size:
            return self._gram.index_select(0, slot)
        rows = torch.add(few, slot.unsqueeze(1), alpha=size) * size
        table = self._gram.reshape(-1).take(rows.unsqueeze(2) + few.unsqueeze(1))
        return table if pool is None else pool.border(table, pool.image[part].gather(1, few), part)

    def pool(self, shares: Tensor) -> Pool:
        """Classes as one class."""
        return Pool(shares, self.product(shares))

    def product_with_pool(self, few: Tensor, weights: Tensor, pool: Pool, share: Tensor) -> tuple[Tensor, None]:
        """Forms and memos of few classes and a pool."""
        return torch.addcmul(self.product_of_few(few, weights)[0], share, pool.image), None


class RowTables(QuadraticTables):
    """Forms from products with the covariance of every row; the memo of a tilt is wbar (N, A)."""

    def __init__(self, weight: Tensor, covariance: CovarianceProtocol, groups: Groups) -> None:
        self._weight, self._constant, self._covariance = weight, weight.detach(), covariance
        self._transform, self._matrices = covariance.transform(groups), groups.classes[groups.slot]
        self.diagonal = covariance.variances(weight, groups.classes)[groups.slot]

    def product(self, tilt: Tensor) -> Tensor:
        """w_j' Sigma_i wbar_i."""
        return self._transform(tilt @ self._weight) @ self._weight.t()

    def product_of_few(self, few: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Forms and memos of few classes."""
        mean = self._mean_of_few(few, weights)
        return self._transform(mean) @ self._constant.t(), mean

    def restricted(self, few: Tensor, part: slice, pool: Pool | None = None) -> Tensor:
        """Forms between few classes."""
        weight, tables, columns = self._constant, [], []
        row_bytes = 3 * few.shape[1] * weight.shape[1] * weight.element_size()
        for piece in chunks(len(few), row_bytes, CACHE_BYTES if on_host(few) else None):
            rows = _rows_of_few(weight, few[piece])
            place = slice(part.start + piece.start, part.start + piece.stop)
            tables.append(self._forms(rows, few[piece], place))
            if pool is not None:
                columns.append((rows @ pool.image[place].unsqueeze(2)).squeeze(2))
        table = join_chunks(tables)
        return table if pool is None else pool.border(table, join_chunks(columns), part)

    def _forms(self, rows: Tensor, few: Tensor, part: slice) -> Tensor:
        """(n, m, m) forms between the weights ``rows`` (n, m, A) of the classes ``few`` (n, m)."""
        return self._covariance.transform_stacks(rows, self._matrices[part]) @ rows.mT

    def pool(self, shares: Tensor) -> Pool:
        """Classes as one class."""
        mean = shares @ self._constant
        return Pool(mean, self._transform(mean))

    def product_with_pool(self, few: Tensor, weights: Tensor, pool: Pool, share: Tensor) -> tuple[Tensor, Tensor]:
        """Forms and memos of few classes and a pool."""
        mean = torch.addcmul(self._mean_of_few(few, weights), share, pool.mean)
        return self._transform(mean) @ self._constant.t(), mean

    def known_product(self, tilt: Tensor, memo: Tensor) -> Tensor:
        """The product of a constant tilt whose memo is known."""
        return self._transform(_KnownMean.apply(self._weight, tilt, memo)) @ self._weight.t()

    def _mean_of_few(self, few: Tensor, weights: Tensor) -> Tensor:
        return F.embedding_bag(few, self._constant, per_sample_weights=weights, mode="sum")


class ProjectedRowTables(RowTables):
    """The same where W Sigma_k (K, C, A) of the groups' matrices is known; the memo of a tilt is Sigma_i wbar_i (N, A).

    Forms can be differentiated once, in W.
    """

    def __init__(self, weight: Tensor, projected: ProjectedWeights, groups: Groups) -> None:
        self._weight, self._constant, self._projected, self._groups = weight, weight.detach(), projected, groups
        self._scale = projected.scale.index_select(0, groups.slot).unsqueeze(1)
        self._first = (groups.slot * len(weight)).unsqueeze(1)
        self.diagonal = projected.variances.index_select(0, groups.slot)

    def product(self, tilt: Tensor) -> Tensor:
        """w_j' Sigma_i wbar_i."""
        return self.known_product(tilt, self._images(tilt))

    def product_of_few(self, few: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Forms and memos of few classes."""
        image = self._image_of_few(few, weights)
        return image @ self._constant.t(), image

    def _forms(self, rows: Tensor, few: Tensor, part: slice) -> Tensor:
        projected = _rows_of_few(self._projected.products.flatten(0, 1), few + self._first[part])
        return (projected @ rows.mT).mul_(self._scale[part].unsqueeze(2))

    def pool(self, shares: Tensor) -> Pool:
        """Classes as one class."""
        return Pool(shares @ self._constant, self._images(shares))

    def product_with_pool(self, few: Tensor, weights: Tensor, pool: Pool, share: Tensor) -> tuple[Tensor, Tensor]:
        """Forms and memos of few classes and a pool."""
        image = torch.addcmul(self._image_of_few(few, weights), share, pool.image)
        return image @ self._constant.t(), image

    def known_product(self, tilt: Tensor, memo: Tensor) -> Tensor:
        """The product of a constant tilt whose memo is known."""
        return _KnownProduct.apply(self._weight, tilt, memo, self._images)

    def _images(self, rows: Tensor) -> Tensor:
        """(N, A) Sigma_i sum_j x_ij w_j of rows x (N, C)."""
        return product_by_group(rows, self._projected.products, self._groups) * self._scale

    def _image_of_few(self, few: Tensor, weights: Tensor) -> Tensor:
        products = self._projected.products.flatten(0, 1)
        return F.embedding_bag(few + self._first, products, per_sample_weights=weights * self._scale, mode="sum")


def _rows_of_few(table: Tensor, few: Tensor) -> Tensor:
    """(n, m, A) the rows ``few`` (n, m) of a table (C, A)."""
    return table.index_select(0, few.flatten()).view(*few.shape, -1)


class _KnownMean(torch.autograd.Function):
    """wbar = T W, known, for constant tilts T."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, tilt: Tensor, mean: Tensor) -> Tensor:
        ctx.save_for_backward(tilt)
        return mean.view_as(mean)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (tilt,) = ctx.saved_tensors
        return tilt.t() @ grad, None, None


class _KnownProduct(torch.autograd.Function):
    """w_j' u_i from the images u_i = Sigma_i sum_k t_ik w_k of constant tilts t.

    With the gradient G of the result, dW = G' U + T' V for the images V of the rows of G.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, tilt: Tensor, image: Tensor, images: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.save_for_backward(tilt, image)
        ctx.images = images
        return image @ weight.t()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        tilt, image = ctx.saved_tensors
        return (grad.t() @ image).addmm_(tilt.t(), ctx.images(grad)), None, None, None
