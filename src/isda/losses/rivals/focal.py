"""Focal loss (Lin et al., ICCV 2017): easy samples weigh less."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from isda.losses.rivals.rows import SampleLoss, check_number, check_rows, reduced

__all__ = ["FocalLoss", "focal_rows"]


def focal_rows(cross_entropy: Tensor, alpha: float = 0.5, gamma: float = 1.0) -> Tensor:
    """Alpha (1 - p)^gamma * cross-entropy, with p = exp(-cross-entropy), for each entry.

    Example:
        >>> focal_rows(torch.tensor([0.6931472]))  # p = 1/2
        tensor([0.1733])
    """
    if gamma == 0:
        return alpha * cross_entropy
    # Away from 0, where the derivative of a power below 1 is infinite and would meet a cross-entropy of 0.
    missed = (-torch.expm1(-cross_entropy)).clamp_min(torch.finfo(cross_entropy.dtype).tiny)
    return alpha * missed**gamma * cross_entropy


class FocalLoss(SampleLoss):
    """-alpha (1 - p_y)^gamma log p_y; gamma = 0 is alpha times cross-entropy.

    Args:
        alpha: factor on the whole loss; the ISDA paper chooses 0.5.
        gamma: how much less an easy sample weighs; the ISDA paper chooses 1, Lin et al. 2.
        reduction: mean, sum or none.
        cross_entropy: ``ISDALoss.attach(model, ..., reduction="none")`` puts its bound in place of -log p_y.

    Shape:
        logits (N, C), targets (N,); a scalar, or (N,) for reduction none.

    Example:
        >>> criterion = FocalLoss(gamma=0.0, alpha=1.0)
        >>> criterion(torch.zeros(2, 4), torch.tensor([0, 3]))  # log 4
        tensor(1.3863)
    """

    def __init__(
        self,
        alpha: float = 0.5,
        gamma: float = 1.0,
        *,
        reduction: str = "mean",
        cross_entropy: nn.Module | None = None,
    ) -> None:
        super().__init__(reduction=reduction, cross_entropy=cross_entropy, linear=False)
        self.alpha, self.gamma = check_number("alpha", alpha), check_number("gamma", gamma)

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss."""
        check_rows(logits, targets)
        return reduced(focal_rows(self.rows(logits, targets), self.alpha, self.gamma), self.reduction)

    def extra_repr(self) -> str:
        """Show the settings in repr()."""
        return f"alpha={self.alpha:g}, gamma={self.gamma:g}"
