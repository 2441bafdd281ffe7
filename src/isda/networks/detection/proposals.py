"""The region proposal network, with a loss that does not depend on how images are shared out among processes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead

from isda.networks.detection.sampling import KeyedSampler, keys_of

__all__ = ["Proposals", "mean_over_images"]

ANCHOR_RATIOS = (0.5, 1.0, 2.0)


def mean_over_images(losses: Iterable[tuple[Tensor, ...]]) -> list[Tensor]:
    """The mean of each loss over the images: each image's losses are normalised by its own samples.

    torchvision divides by the samples of all images of a process. That is the same where images have as many samples,
    and differs with the number of processes where they do not.
    """
    return [torch.stack(parts).mean() for parts in zip(*losses, strict=True)]


class Proposals(RegionProposalNetwork):
    """torchvision's, with anchors of one size per level.

    Args:
        channels: of the maps.
        strides: of the levels.
        anchor_scale: side of the anchors, in strides.
        samples: anchors per image that are learnt from.
        kept: proposals per image.
    """

    def __init__(self, channels: int, strides: list[int], *, anchor_scale: float, samples: int, kept: int) -> None:
        anchors = AnchorGenerator(
            tuple((anchor_scale * stride,) for stride in strides), (ANCHOR_RATIOS,) * len(strides)
        )
        super().__init__(
            anchors,
            RPNHead(channels, len(ANCHOR_RATIOS)),
            fg_iou_thresh=0.7,
            bg_iou_thresh=0.3,
            batch_size_per_image=samples,
            positive_fraction=0.5,
            pre_nms_top_n={"training": 2 * kept, "testing": kept},
            post_nms_top_n={"training": kept, "testing": kept},
            nms_thresh=0.7,
        )
        self.fg_bg_sampler = KeyedSampler(samples, 0.5, purpose=0)

    def forward(
        self, images: ImageList, features: dict[str, Tensor], targets: list[dict[str, Any]] | None = None
    ) -> tuple[list[Tensor], dict[str, Tensor]]:
        """Boxes of each image, and in training the losses."""
        self.fg_bg_sampler.keys = keys_of(targets)
        proposals: tuple[list[Tensor], dict[str, Tensor]] = super().forward(images, features, targets)
        return proposals

    def compute_loss(
        self, objectness: Tensor, pred_bbox_deltas: Tensor, labels: list[Tensor], regression_targets: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Cross-entropy of objectness and smooth L1 (beta 1/9) of the boxes of positive anchors, image by image."""
        positives, negatives = self.fg_bg_sampler(labels)
        logits = objectness.flatten().split([len(one) for one in labels])
        deltas = pred_bbox_deltas.split([len(one) for one in labels])
        losses = []
        for image, (positive, negative) in enumerate(zip(positives, negatives, strict=True)):
            positive, drawn = positive.nonzero().flatten(), (positive | negative).nonzero().flatten()
            box_loss = F.smooth_l1_loss(
                deltas[image][positive], regression_targets[image][positive], beta=1 / 9, reduction="sum"
            )
            truth = labels[image][drawn].to(logits[image].dtype)
            losses.append(
                (
                    F.binary_cross_entropy_with_logits(logits[image][drawn], truth),
                    box_loss / max(1, len(drawn)),
                )
            )
        objectness_loss, box_loss = mean_over_images(losses)
        return objectness_loss, box_loss
