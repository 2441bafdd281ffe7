"""FixMatch (Sohn et al., NeurIPS 2020): confident pseudo labels of weakly augmented images teach the strong views."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isda.semi.batch import UnlabelledBatch
from isda.semi.regulariser import Regulariser

__all__ = ["FixMatch", "FixMatchOptions"]


@dataclass(frozen=True, kw_only=True)
class FixMatchOptions:
    """What may follow ``fixmatch:``."""

    threshold: float = 0.95
    """Confidence that a pseudo label needs."""


class FixMatch(Regulariser):
    """1/N sum_i 1[max p(x_i) >= threshold] H(argmax p(x_i), p(strong(x_i))); no gradient into the pseudo label.

    The publication evaluates the exponential moving average of the weights (decay 0.999); that is for the training
    loop to keep, for this method as for any other. Strong views share the statistics of batch normalisation with
    the labelled images, as the weak ones do; in the authors' code all three are one batch.

    Args:
        threshold: confidence that a pseudo label needs; 0.95 in the publication.
    """

    name = "fixmatch"
    Options = FixMatchOptions

    def __init__(self, threshold: float = 0.95) -> None:
        super().__init__()
        if not 0 <= threshold <= 1:
            raise ValueError(f"threshold must lie in 0..1, got {threshold!r}")
        self.threshold = float(threshold)

    def forward(self, network: nn.Module, view: UnlabelledBatch, logits: Tensor) -> Tensor:
        """See Regulariser; runs the student on the strong view."""
        confidence, pseudo_labels = torch.softmax(logits.detach(), 1).max(1)
        losses = F.cross_entropy(view.passed(network, view.needed("strong")), pseudo_labels, reduction="none")
        return (losses * (confidence >= self.threshold)).mean()
