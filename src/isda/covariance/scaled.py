"""Estimated covariances whose features are stretched by trained factors: what meta-learning of covariances trains."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from isda.covariance.base import CovarianceModel
from isda.covariance.wrapping import WrappedCovariance

__all__ = ["ScaledCovariance"]


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
