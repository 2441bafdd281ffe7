"""Region proposal network with per-image sampling keys.

Samples and losses of an image do not depend on the other images of its process. torchvision samples from the global
generator for all images of a batch in turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.models.detection._utils import BalancedPositiveNegativeSampler
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead

from isda.lab.seeds import generator

ANCHOR_RATIOS = (0.5, 1.0, 2.0)


class KeyedSampler(BalancedPositiveNegativeSampler):
    """Samples a number of elements of each image by the key of the image.

    Args:
        batch_size_per_image: the number of elements.
        positive_fraction: the largest fraction of positive ones.
        purpose: distinguishes the samplers of one network.

    Example:
        >>> sampler = KeyedSampler(4, 0.5, purpose=1)
        >>> sampler.keys = [7, 7]
        >>> first, second = sampler([torch.tensor([1, 0, 0, 0, 1, 1, -1])] * 2)[0]
        >>> int(first.sum()), torch.equal(first, second)
        (2, True)
    """

    def __init__(self, batch_size_per_image: int, positive_fraction: float, purpose: int) -> None:
        super().__init__(batch_size_per_image, positive_fraction)
        self.purpose = purpose
        self.keys: list[int] | None = None
        """Keys of the images of the next call; without them the global generator draws."""

    def take_keys(self, targets: Sequence[Mapping[str, Any]] | None) -> None:
        """Sample the next images by the keys of their targets, if each has one."""
        keys = [target.get("key") for target in targets or ()]
        self.keys = [key for key in keys if key is not None] if keys and None not in keys else None

    def __call__(self, matched_idxs: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Masks of the sampled positive and negative elements; in ``matched_idxs``, 0 is negative and -1 neither."""
        if self.keys is None:
            drawn: tuple[list[Tensor], list[Tensor]] = super().__call__(matched_idxs)
            return drawn
        positives, negatives = [], []
        for labels, key in zip(matched_idxs, self.keys, strict=True):
            positive = self._draw(labels >= 1, int(self.batch_size_per_image * self.positive_fraction), key, 0)
            left = self.batch_size_per_image - int(positive.sum())
            positives.append(positive)
            negatives.append(self._draw(labels == 0, left, key, 1))
        return positives, negatives

    def _draw(self, candidates: Tensor, count: int, key: int, kind: int) -> Tensor:
        """A mask of at most ``count`` of the candidates."""
        indices = candidates.nonzero().flatten()
        order = torch.randperm(len(indices), generator=generator(key, self.purpose, kind), device="cpu")[:count]
        mask = torch.zeros_like(candidates, dtype=torch.uint8)
        mask[indices[order.to(indices.device)]] = 1
        return mask


def mean_over_images(losses: Iterable[tuple[Tensor, ...]]) -> list[Tensor]:
    """The mean of each loss over the images; each image's losses are normalised by its own samples.

    torchvision divides by the samples of all images of a process, so that its losses depend on the number of processes
    where images differ in their number of samples.
    """
    return [torch.stack(parts).mean() for parts in zip(*losses, strict=True)]


class RegionProposals(RegionProposalNetwork):
    """torchvision's region proposal network with anchors of one size per level.

    ``anchor_scale`` is the side of the anchors in strides of their level, ``samples`` the number of anchors per image
    in the loss, ``kept`` the number of proposals per image.
    """

    def __init__(self, channels: int, strides: list[int], *, anchor_scale: float, samples: int, kept: int) -> None:
        sizes = tuple((anchor_scale * stride,) for stride in strides)
        super().__init__(
            AnchorGenerator(sizes, (ANCHOR_RATIOS,) * len(strides)),
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
        self.fg_bg_sampler.take_keys(targets)
        proposals: tuple[list[Tensor], dict[str, Tensor]] = super().forward(images, features, targets)
        return proposals

    def compute_loss(
        self, objectness: Tensor, pred_bbox_deltas: Tensor, labels: list[Tensor], regression_targets: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Cross-entropy of objectness and smooth L1 (beta 1/9) of the boxes of positive anchors, image by image."""
        positives, negatives = self.fg_bg_sampler(labels)
        counts = [len(image) for image in labels]
        logits, deltas = objectness.flatten().split(counts), pred_bbox_deltas.split(counts)
        losses = []
        for image, (positive, negative) in enumerate(zip(positives, negatives, strict=True)):
            positive, drawn = positive.nonzero().flatten(), (positive | negative).nonzero().flatten()
            box_loss = F.smooth_l1_loss(
                deltas[image][positive], regression_targets[image][positive], beta=1 / 9, reduction="sum"
            )
            truth = labels[image][drawn].to(logits[image].dtype)
            objectness_loss = F.binary_cross_entropy_with_logits(logits[image][drawn], truth)
            losses.append((objectness_loss, box_loss / max(1, len(drawn))))
        objectness_loss, box_loss = mean_over_images(losses)
        return objectness_loss, box_loss
