"""Label-distribution-aware margins (Cao et al., NeurIPS 2019): small classes keep large margins."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from isda.functional.long_tail import label_margins
from isda.losses.long_tail.providers import OffsetTable

__all__ = ["LDAMMargins"]


class LDAMMargins(OffsetTable):
    """-s Delta_y on the logit of the own class, which is o_yj = s Delta_y for all others; Delta_c ~ n_c^(-1/4).

    The publication has logits s cos(angle) with s = 30; those of a plain linear classifier have a scale of their own,
    which is why s is 1 here. Its deferred re-weighting is ``criterion.class_weight``, set late in training to
    `isda.functional.class_balanced_weights` (docs/longtail.md).

    Args:
        counts: (C,) training samples of each class.
        max_margin: Delta of the smallest class.
        scale: s.

    Example:
        >>> LDAMMargins([10000, 1], max_margin=0.5).rows(torch.tensor([0, 1]))
        tensor([[0.0000, 0.0500],
                [0.5000, 0.0000]], dtype=torch.float64)
    """

    def __init__(self, counts: Tensor | Sequence[float], max_margin: float = 0.5, scale: float = 1.0) -> None:
        if not 0 <= scale < math.inf:
            raise ValueError(f"scale must be a finite number >= 0, got {scale!r}")
        margins = scale * label_margins(counts, max_margin)
        others = 1 - torch.eye(len(margins), dtype=margins.dtype, device=margins.device)
        super().__init__(margins.unsqueeze(1) * others)
        self.max_margin, self.scale = float(max_margin), float(scale)

    def extra_repr(self) -> str:
        """Show the settings in repr()."""
        return f"max_margin={self.max_margin:g}, scale={self.scale:g}"
