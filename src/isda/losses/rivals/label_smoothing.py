"""Label smoothing (Szegedy et al., CVPR 2016; Mueller et al., NeurIPS 2019)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from isda.losses.rivals.rows import SampleLoss, check_number, check_rows, own, reduced, wide

__all__ = ["LabelSmoothing"]


class LabelSmoothing(SampleLoss):
    """-sum_c q_c log p_c with q = (1 - smoothing) one-hot(y) + smoothing / C; smoothing 0 is cross-entropy to the bit.

    In terms of the cross-entropy it is -log p_y + smoothing (z_y - mean_c z_c), and so it is for ISDA's bound of it.

    Args:
        smoothing: 0..1, the share of the target that is spread over all classes.
        reduction: mean, sum or none.
        cross_entropy: ``ISDALoss.attach(model, ..., reduction="none")`` puts its bound in place of -log p_y; the same
            as ``ISDALoss(label_smoothing=smoothing)``.

    Shape:
        logits (N, C), targets (N,); a scalar, or (N,) for reduction none.

    Example:
        >>> import torch
        >>> LabelSmoothing()(torch.zeros(2, 4), torch.tensor([0, 3]))  # log 4
        tensor(1.3863)
    """

    def __init__(
        self, smoothing: float = 0.1, *, reduction: str = "mean", cross_entropy: nn.Module | None = None
    ) -> None:
        super().__init__(reduction=reduction, cross_entropy=cross_entropy)
        self.smoothing = check_number("smoothing", smoothing, high=1.0)

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss."""
        check_rows(logits, targets)
        if self.cross_entropy is None:
            return F.cross_entropy(
                wide(logits), targets.long(), reduction=self.reduction, label_smoothing=self.smoothing
            )
        rows, plain = self.rows(logits, targets), wide(logits)
        return reduced(rows + self.smoothing * (own(plain, targets) - plain.mean(1)), self.reduction)

    def extra_repr(self) -> str:
        """Show the settings in repr()."""
        return f"smoothing={self.smoothing:g}"
