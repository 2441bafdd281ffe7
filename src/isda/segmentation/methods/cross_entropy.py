"""Plain cross-entropy of every pixel: what every other method is compared to."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from isda.data.segmentation import IGNORED
from isda.losses.spatial import resize_logits
from isda.segmentation.methods.base import Head, PixelOptions, SegmentationMethod

__all__ = ["CrossEntropy", "CrossEntropyOptions"]


@dataclass(frozen=True, kw_only=True)
class CrossEntropyOptions(PixelOptions):
    """What may follow ``cross-entropy:``."""

    label_smoothing: float = 0.0
    """Share of the target that is spread over all classes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.label_smoothing <= 1:
            raise ValueError(f"label_smoothing must lie in 0..1, got {self.label_smoothing}")


class CrossEntropy(SegmentationMethod):
    """nn.CrossEntropyLoss of the upsampled logits."""

    name = "cross-entropy"
    Options = CrossEntropyOptions
    options: CrossEntropyOptions

    def pixel_losses(self, head: Head, targets: Tensor) -> Tensor:
        """-log p of the pixel's class."""
        logits = resize_logits(head.logits, targets.shape[1:], align_corners=True)
        smoothing = self.options.label_smoothing
        return F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="none", label_smoothing=smoothing)
