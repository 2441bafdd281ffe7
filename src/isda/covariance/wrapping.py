"""Covariance models made from another model, which learns from the features as it does alone."""

from __future__ import annotations

from typing import TypeVar, cast

import torch
from torch import Tensor

from isda.covariance.base import CovarianceModel
from isda.functional.grouping import Groups
from isda.functional.patches import Patches

__all__ = ["WrappedCovariance"]

_Wrapped = TypeVar("_Wrapped", bound="WrappedCovariance")


class WrappedCovariance(CovarianceModel):
    """Counts, means, dtype and learning are those of ``base``; what is made of its covariances, a subclass says.

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
