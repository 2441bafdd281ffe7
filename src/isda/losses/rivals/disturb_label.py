"""DisturbLabel (Xie et al., CVPR 2016): a few labels of every batch are wrong on purpose."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isda.losses.rivals.rows import SampleLoss, check_number, check_rows, own, reduced, wide

__all__ = ["DisturbLabel", "disturb_labels"]


def disturb_labels(targets: Tensor, num_classes: int, rate: float, generator: torch.Generator | None = None) -> Tensor:
    """(N,) labels, each drawn anew: y with probability 1 - (C-1)/C rate, every other class with rate / C.

    That is: with probability ``rate`` a label is replaced by one drawn evenly from all classes, itself included.

    Args:
        targets: (N,) class indices y.
        num_classes: C.
        rate: the noise rate alpha, 0..1.
        generator: of the draws; torch's own by default.

    Example:
        >>> disturb_labels(torch.tensor([2, 0, 1]), num_classes=3, rate=0.0)
        tensor([2, 0, 1])
    """
    shape, device = targets.shape, targets.device
    replaced = torch.rand(shape, generator=generator, device=device) < rate
    others = torch.randint(num_classes, shape, generator=generator, device=device, dtype=targets.dtype)
    return torch.where(replaced, others, targets)


class DisturbLabel(SampleLoss):
    """Cross-entropy with labels drawn anew in each training step; in eval mode it is plain cross-entropy.

    On top of ISDA a sample keeps the covariance of its true class and the bound's own pivot; what is disturbed is the
    label that the loss aims at: bound + z_y - z_y' with the drawn label y'. On average over the draws that is label
    smoothing on top of ISDA.

    Args:
        rate: the noise rate alpha; the ISDA paper takes 0.05, and 0.1 for ResNet-110 on CIFAR-100.
        reduction: mean, sum or none.
        cross_entropy: ``ISDALoss.attach(model, ..., reduction="none")`` puts its bound in place of -log p_y.

    Shape:
        logits (N, C), targets (N,); a scalar, or (N,) for reduction none.

    Example:
        >>> DisturbLabel(rate=0.5)(torch.zeros(2, 4), torch.tensor([0, 3]))  # log 4, whatever the labels
        tensor(1.3863)
    """

    def __init__(self, rate: float = 0.05, *, reduction: str = "mean", cross_entropy: nn.Module | None = None) -> None:
        super().__init__(reduction=reduction, cross_entropy=cross_entropy)
        self.rate = check_number("rate", rate, high=1.0)

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss; the draws are torch's next ones on the device of the targets."""
        check_rows(logits, targets)
        aims = disturb_labels(targets, logits.shape[1], self.rate) if self.training else targets
        if self.cross_entropy is None:
            return F.cross_entropy(wide(logits), aims.long(), reduction=self.reduction)
        rows, plain = self.rows(logits, targets), wide(logits)
        return reduced(rows + own(plain, targets) - own(plain, aims), self.reduction)

    def extra_repr(self) -> str:
        """Show the settings in repr()."""
        return f"rate={self.rate:g}"
