"""L_q loss (Zhang and Sabuncu, NeurIPS 2018): between cross-entropy (q = 0) and mean absolute error (q = 1)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from isda.losses.rivals.rows import SampleLoss, check_number, check_rows, reduced

__all__ = ["LqLoss", "lq_rows"]


def lq_rows(cross_entropy: Tensor, q: float = 0.4) -> Tensor:
    """(1 - p^q) / q with p = exp(-cross-entropy), for each entry; the cross-entropy itself for q = 0.

    Example:
        >>> lq_rows(torch.tensor([0.6931472]), q=1.0)  # p = 1/2
        tensor([0.5000])
    """
    numbers = torch.finfo(cross_entropy.dtype)
    if q < numbers.tiny / numbers.eps:
        # What q * cross-entropy would underflow for is beyond the precision of the result.
        return cross_entropy
    exponent = -q * cross_entropy
    # The derivative p^q is 1 + expm1 in torch, which is no number to speak of for a tiny p; exp has it exactly.
    return torch.where(exponent > -1, -torch.expm1(exponent), 1 - torch.exp(exponent)) / q


class LqLoss(SampleLoss):
    """(1 - p_y^q) / q; q -> 0 is cross-entropy.

    Args:
        q: 0..1; the ISDA paper chooses 0.4, Zhang and Sabuncu 0.7.
        reduction: mean, sum or none.
        cross_entropy: ``ISDALoss.attach(model, ..., reduction="none")`` puts its bound in place of -log p_y.

    Shape:
        logits (N, C), targets (N,); a scalar, or (N,) for reduction none.

    Example:
        >>> LqLoss(q=1.0)(torch.zeros(2, 4), torch.tensor([0, 3]))  # 1 - 1/4
        tensor(0.7500)
    """

    def __init__(self, q: float = 0.4, *, reduction: str = "mean", cross_entropy: nn.Module | None = None) -> None:
        super().__init__(reduction=reduction, cross_entropy=cross_entropy, linear=False)
        self.q = check_number("q", q, high=1.0)

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss."""
        check_rows(logits, targets)
        return reduced(lq_rows(self.rows(logits, targets), self.q), self.reduction)

    def extra_repr(self) -> str:
        """Show the settings in repr()."""
        return f"q={self.q:g}"
