"""Covariance models that modify another model: trained scales (for MetaSAug, Li et al., CVPR 2021) and mixtures over
confused classes (RISDA, Chen et al., AAAI 2022).
"""

from __future__ import annotations

from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from isda.covariance.base import CovarianceModel
from isda.functional.grouping import WORKSPACE_BYTES, Groups, UnchangedBuffers, chunks, frozen
from isda.functional.patches import Patches
from isda.functional.quadratic import centred, margin_from_forms

_Wrapped = TypeVar("_Wrapped", bound="WrappedCovariance")


class WrappedCovariance(CovarianceModel):
    """Counts, means, dtype and learning are those of ``base``; subclasses define what is made of its covariances.

    Args:
        base: any covariance model; it is part of this one from now on.
    """

    def __init__(self, base: CovarianceModel) -> None:
        if not isinstance(base, CovarianceModel):
            raise ValueError(f"base must be a CovarianceModel, got {type(base).__name__}")
        super().__init__(base.num_classes, base.feature_dim, device=base.count.device)
        self.base = base
        self.sync, self.process_group = base.sync, base.process_group
        self.count.copy_(base.count)

    @property
    def dtype(self) -> torch.dtype:
        """That of the base."""
        return self.base.dtype

    @property
    def mean(self) -> Tensor:
        """(C, A) means of the base."""
        return self.base.mean

    def update(
        self, features: Tensor | Patches, targets: Tensor, *, mask: Tensor | None = None, groups: Groups | None = None
    ) -> None:
        """The base learns."""
        self.base.validate = self.validate
        self.base.update(features, targets, mask=mask, groups=groups)
        self.count.copy_(self.base.count)

    @torch.no_grad()
    def merge(self, other: CovarianceModel) -> None:
        """The bases are merged."""
        self._check_same_kind(other)
        self.base.merge(cast(WrappedCovariance, other).base)
        self.count.copy_(self.base.count)

    def reset(self) -> None:
        """The base forgets."""
        self.base.reset()
        self.count.zero_()

    def penalty(self) -> Tensor | None:
        """The base's."""
        return self.base.penalty()

    @property
    def _matrices(self) -> Tensor:
        """(G,) the indices of all matrices of the base."""
        return torch.arange(self.base.num_matrices, device=self.count.device)


class ScaledCovariance(WrappedCovariance):
    """Sigma_c = diag(e^s_c) S_c diag(e^s_c): the covariances S of ``base``, with s (C, A) trained by gradient.

    Positive semi-definite whatever s is, and at s = 0 those of the base. Every operation is differentiable twice in s
    and in the weights. The bounds alone are smallest for s towards minus infinity: train s by another loss, as MetaSAug
    does (`isda.losses.long_tail.MetaLearner`).

    Args:
        base: what estimates the covariances, such as a FullCovariance.

    Example:
        >>> from isda.covariance import FullCovariance
        >>> model = ScaledCovariance(FullCovariance(num_classes=2, feature_dim=1))
        >>> model.update(torch.tensor([[0.0], [2.0]]), torch.tensor([0, 0]))
        >>> with torch.no_grad():
        ...     _ = model.log_scale.fill_(0.5 * torch.tensor(4.0).log())  # standard deviations times 2
        >>> model.covariance(0).detach()
        tensor([[4.]])
    """

    def __init__(self, base: CovarianceModel) -> None:
        super().__init__(base)
        shape = (self.num_classes, self.feature_dim)
        self.log_scale = nn.Parameter(torch.zeros(shape, dtype=self.dtype, device=self.count.device))

    def product(self, vectors: Tensor, matrices: Tensor) -> Tensor:
        """(N, A) rows e^s (S (e^s v))."""
        scale = self.log_scale.index_select(0, matrices).exp()
        return scale * self.base.product(scale * vectors, self.base.matrix_index(matrices))

    @torch.no_grad()
    def reset(self) -> None:
        """Forget everything: what was trained, too."""
        super().reset()
        self.log_scale.zero_()


class ConfusionCovariance(WrappedCovariance):
    """Sigma_y = sum_k g_yk S_k: the covariances S of ``base``, mixed by how often class y is taken for class k.

    g_y is a running mean of the predictions, distributions over the classes, for training samples of class y, which a
    criterion shows by ``observe``: in every update that has samples of y, g_y moves to their mean by 1 - memory. A
    class that was not seen yet is taken for itself.

    Args:
        base: what estimates the covariances of the classes, such as a FullCovariance.
        memory: how much of g_y an update leaves.

    Example:
        >>> from isda.covariance import FullCovariance
        >>> model = ConfusionCovariance(FullCovariance(num_classes=2, feature_dim=1))
        >>> model.update(torch.tensor([[0.0], [2.0]]), torch.tensor([0, 0]))
        >>> model.observe(torch.zeros(1, 2), torch.tensor([1]))  # as likely class 0 as class 1
        >>> model.graph, model.covariance(1)
        (tensor([[1.0000, 0.0000],
                [0.5000, 0.5000]]), tensor([[0.5000]]))
    """

    uses_logits = True
    graph: Tensor
    """(C, C) g; rows sum to 1."""
    known: Tensor
    """(C,) whether predictions for the class have been seen."""

    def __init__(self, base: CovarianceModel, *, memory: float = 0.9) -> None:
        super().__init__(base)
        if self.num_classes < 2:
            raise ValueError(f"base must be of at least 2 classes to be confused, got {self.num_classes}")
        if not 0 <= memory < 1:
            raise ValueError(f"memory must be in [0, 1), got {memory!r}")
        self.memory = float(memory)
        self.register_buffer("graph", torch.eye(self.num_classes, dtype=self.dtype, device=self.count.device))
        self.register_buffer("known", torch.zeros_like(self.count, dtype=torch.bool))

    # -- learning ----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def observe(self, logits: Tensor, targets: Tensor, mask: Tensor | None = None) -> None:
        """Learn what samples of the classes ``targets`` (N,) are taken for from their logits (N, C).

        Rows where ``mask`` is False, with a label out of range or without finite logits are left out. With several
        processes each shows its own rows.
        """
        labels = targets.clamp(0, self.num_classes - 1)
        predictions = torch.softmax(logits.detach().to(self.dtype), 1)
        counts = (labels == targets) & predictions.isfinite().all(1)
        if mask is not None:
            counts = counts & mask
        # The number of rows in a further column: one exchange for all.
        rows = torch.cat([predictions.nan_to_num(), torch.ones_like(predictions[:, :1])], 1) * counts.unsqueeze(1)
        sums = torch.zeros(self.num_classes, rows.shape[1], dtype=self.dtype, device=rows.device)
        sums.index_add_(0, labels, rows)
        if self._world_size() > 1:
            dist.all_reduce(sums, group=self.process_group)
        seen = sums[:, -1] > 0
        mean = sums[:, :-1] / sums[:, -1:].clamp_min(1)
        step = (1 - self.memory * self.known.to(self.dtype)) * seen
        self.graph.add_((mean - self.graph) * step.unsqueeze(1))
        self.known.logical_or_(seen)

    @torch.no_grad()
    def merge(self, other: CovarianceModel) -> None:
        """Absorb what the other has seen; confusions of a class that both know are averaged by their counts."""
        self._check_same_kind(other)
        other = cast(ConfusionCovariance, other)
        mine, theirs = self.count * self.known, other.count * other.known
        share = torch.where(self.known, theirs / (mine + theirs).clamp_min(1), other.known.to(torch.float64))
        super().merge(other)
        self.graph.add_((other.graph.to(self.dtype) - self.graph) * share.to(self.dtype).unsqueeze(1))
        self.known.logical_or_(other.known)

    @torch.no_grad()
    def reset(self) -> None:
        """Forget everything."""
        super().reset()
        self.graph.copy_(torch.eye(self.num_classes, dtype=self.dtype, device=self.graph.device))
        self.known.zero_()

    # -- the mixture -------------------------------------------------------------------------------------------------

    def _shares(self, matrices: Tensor) -> Tensor:
        """(K, G) how much each of the base's matrices is part of the chosen mixtures."""
        shares = frozen(self.graph.index_select(0, matrices))
        return shares if self.base.num_matrices == self.num_classes else shares.sum(1, keepdim=True)

    def product(self, vectors: Tensor, matrices: Tensor) -> Tensor:
        """(N, A) rows Sigma_k v, a product with each of the base's matrices."""
        shares = self._shares(matrices)
        total = torch.zeros_like(vectors)
        for index in range(self.base.num_matrices):
            only = torch.full_like(matrices, index)
            total = total + shares[:, index : index + 1] * self.base.product(vectors, only)
        return total

    def covariance(self, index: int) -> Tensor:
        """(A, A) covariance of class ``index``."""
        shares = self._shares(torch.tensor([index], device=self.graph.device))[0]
        return torch.stack([self.base.covariance(k) * share for k, share in enumerate(shares)]).sum(0)

    def variances(self, weight: Tensor, matrices: Tensor) -> Tensor:
        """(K, C) table w_j' Sigma_k w_j."""
        return self._shares(matrices) @ self.base.variances(weight, self._matrices)

    def gram(self, weight: Tensor, matrices: Tensor) -> Tensor:
        """(K, C, C) tables W Sigma_k W'."""
        tables = self.base.gram(weight, self._matrices)
        return (self._shares(matrices) @ tables.flatten(1)).view(-1, *tables.shape[1:])

    def margins(self, weight: Tensor, matrices: Tensor, pivots: Tensor) -> Tensor:
        """(K, C) table of margin variances, from the base's tables W S_k W', a few k at a time.

        diagonal[m, j] = sum_k g_mk w_j' S_k w_j and cross[m, j] = sum_k g_mk w_j' S_k w_p(m): C^3 numbers are read,
        and no matrix is mixed.
        """
        weight, shares = centred(weight), self._shares(matrices)
        parts = list(chunks(self.base.num_matrices, 3 * self.num_classes**2 * weight.element_size()))
        unchanged = UnchangedBuffers(*self.base.buffers())

        def forms(weight: Tensor, part: slice) -> tuple[Tensor, Tensor]:
            unchanged.check()
            gram, of_part = self.base.gram(weight, self._matrices[part]), shares[:, part]
            diagonal = of_part @ gram.diagonal(dim1=1, dim2=2)
            return diagonal, torch.einsum("mk,kjm->mj", of_part, gram.index_select(2, pivots))

        if len(parts) == 1:
            return margin_from_forms(*forms(weight, parts[0]), pivots)
        saved: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
        sums = [checkpoint(forms, weight, part, **saved) for part in parts]
        diagonal, cross = (torch.stack(terms).sum(0) for terms in zip(*sums, strict=True))
        return margin_from_forms(diagonal, cross, pivots)

    def prefers_gram(self, rows: int, matrices: int) -> bool:
        """Tables of all classes cost what the base's cost; they only have to fit."""
        return self.num_classes**3 * self.dtype.itemsize <= WORKSPACE_BYTES
