"""Detectors by name, and the transform that resizes and pads their images to a canvas shared by all processes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.detection.generalized_rcnn import GeneralizedRCNN
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.transform import GeneralizedRCNNTransform

from isda.lab.choices import check_choice, positive_integer
from isda.lab.networks.detection.backbone import FeaturePyramid, backbone_stages
from isda.lab.networks.detection.heads import CascadeHeads, HeadOptions, RegionHeads
from isda.lab.networks.detection.proposals import RegionProposals
from isda.lab.networks.network import Network


class CanvasTransform(GeneralizedRCNNTransform):
    """torchvision's transform, with a canvas for the largest image of the batch over all processes.

    What a convolution reads beyond an image's border depends on where the canvas ends. A target may list the sizes of
    all images of its batch, those of other processes included, under "batch_sizes".
    """

    channels_last = False

    def forward(
        self, images: Sequence[Tensor], targets: Sequence[dict[str, Any]] | None = None
    ) -> tuple[ImageList, list[dict[str, Any]] | None]:
        """Images (3, H, W) in 0..1 and their targets, resized so that the short side is ``min_size``."""
        resized: list[Tensor] = []
        resized_targets: list[dict[str, Any]] = []
        for index, image in enumerate(images):
            target = None if targets is None else dict(targets[index])
            self.resized_size(*image.shape[1:])  # raises if no pixel is left
            image, target = self.resize(self.normalize(image), target)
            resized.append(image)
            if target is not None:
                resized_targets.append(target)
        sizes = [(int(image.shape[1]), int(image.shape[2])) for image in resized]
        others = resized_targets[0].get("batch_sizes", ()) if resized_targets else ()
        step = self.size_divisible
        all_sizes = [*sizes, *(self.resized_size(*size) for size in others)]
        height, width = (math.ceil(max(side) / step) * step for side in zip(*all_sizes, strict=True))
        batch = resized[0].new_zeros(len(resized), resized[0].shape[0], height, width)
        for index, image in enumerate(resized):
            batch[index, :, : image.shape[1], : image.shape[2]].copy_(image)
        if self.channels_last:
            batch = batch.contiguous(memory_format=torch.channels_last)
        return ImageList(batch, sizes), resized_targets if targets is not None else None

    def resized_size(self, height: int, width: int) -> tuple[int, int]:
        """The resized (height, width) of an image; a ValueError if no pixel of its short side is left."""
        short, long = min(height, width), max(height, width)
        scale = min(self.min_size[-1] / short, self.max_size / long)
        size = math.floor(height * scale), math.floor(width * scale)
        if min(size) < 1:
            raise ValueError(
                f"images must have a long side of at most {self.max_size} times the short side, which are resized to "
                f"{self.max_size} pixels, got {width} x {height} pixels"
            )
        return size


IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

_HEADS: dict[str, tuple[type[RegionHeads] | type[CascadeHeads], bool]] = {
    "faster-rcnn": (RegionHeads, False),
    "mask-rcnn": (RegionHeads, True),
    "cascade-rcnn": (CascadeHeads, False),
    "cascade-mask-rcnn": (CascadeHeads, True),
}
"""The heads of each detector, and whether they predict masks."""


def names() -> list[str]:
    """The names that :func:`create` accepts."""
    return list(_HEADS)


def has_masks(name: str) -> bool:
    """Whether a detector predicts masks."""
    return _HEADS[check_choice("network", name, _HEADS)][1]


class Detector(GeneralizedRCNN):
    """A detector, called as torchvision's: with targets in training, for losses; without them for detections.

    The modules ``frozen`` are not trained; with ``freeze_batch_norm`` the backbone's batch normalisation keeps its
    running statistics.
    """

    def __init__(
        self,
        pyramid: FeaturePyramid,
        rpn: RegionProposals,
        roi_heads: nn.Module,
        transform: CanvasTransform,
        *,
        frozen: Sequence[nn.Module],
        freeze_batch_norm: bool,
    ) -> None:
        super().__init__(pyramid, rpn, roi_heads, transform)
        self.freeze_batch_norm = freeze_batch_norm
        # A tuple, so that they are not registered a second time as modules.
        self._frozen = tuple(frozen)
        for module in self._frozen:
            module.requires_grad_(False)

    def train(self, mode: bool = True) -> Detector:
        """Training mode, except for frozen modules."""
        super().train(mode)
        norms = [module for module in self.backbone.body.modules() if isinstance(module, nn.BatchNorm2d)]
        for module in (*self._frozen, *(norms if self.freeze_batch_norm else ())):
            module.eval()
        return self


def create(
    name: str,
    num_classes: int,
    *,
    backbone: str | Network = "resnet-50",
    backbone_options: dict[str, Any] | None = None,
    frozen_stages: int = 0,
    freeze_batch_norm: bool = True,
    min_size: int = 800,
    max_size: int = 1333,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
    fpn_channels: int = 256,
    head_dim: int = 1024,
    anchor_scale: float = 8.0,
    proposals: int = 1000,
    anchor_samples: int = 256,
    box_samples: int = 512,
    score_threshold: float = 0.05,
    detections: int = 100,
    channels_last: bool = False,
) -> Detector:
    """Build a detector by name, with random weights.

    Args:
        name: one of :func:`names`.
        num_classes: kinds of objects, without the background: labels are 1..num_classes.
        backbone: a network of `isda.lab.networks`, its name, or ``timm:NAME``.
        backbone_options: of the network, where it is a name.
        frozen_stages: the backbone's stem and this many of its stages are not trained.
        freeze_batch_norm: the backbone's batch normalisation keeps its running statistics.
        min_size: images are resized so that their short side has this many pixels,
        max_size: and their long side at most this many.
        mean: per channel, of pixels in 0..1.
        std: per channel.
        fpn_channels: of the pyramid.
        head_dim: of the two hidden layers of a box head.
        anchor_scale: side of the anchors in strides of their level.
        proposals: per image.
        anchor_samples: anchors per image in the loss of the proposals.
        box_samples: proposals per image in the loss of the heads.
        score_threshold: minimal score of a detection.
        detections: per image, at most.
        channels_last: memory format of convolutions.

    Raises:
        ValueError: an unknown name (with the nearest known one), or an option out of range.

    Example:
        >>> import torch
        >>> detector = create("faster-rcnn", num_classes=4, backbone="fast-cnn", min_size=64, fpn_channels=16)
        >>> sorted(detector.eval()([torch.zeros(3, 64, 64)])[0])
        ['boxes', 'labels', 'scores']
    """
    heads, masks = _HEADS[check_choice("network", name, _HEADS)]
    for argument, value in {"num_classes": num_classes, "min_size": min_size, "proposals": proposals}.items():
        positive_integer(argument, value)
    if max_size < min_size:
        raise ValueError(f"max_size must be at least min_size={min_size}, got {max_size}")
    if not anchor_scale > 0:
        raise ValueError(f"anchor_scale must be positive, got {anchor_scale}")
    stages = backbone_stages(backbone, **(backbone_options or {}))
    if not 0 <= frozen_stages <= len(stages.strides):
        raise ValueError(f"frozen_stages must be from 0 to {len(stages.strides)}, got {frozen_stages}")
    pyramid = FeaturePyramid(stages, fpn_channels)
    transform = CanvasTransform(min_size, max_size, list(mean), list(std), size_divisible=max(32, stages.strides[-1]))
    transform.channels_last = channels_last
    options = HeadOptions(
        num_classes=num_classes + 1,
        dim=head_dim,
        samples=box_samples,
        masks=masks,
        score_threshold=score_threshold,
        detections=detections,
    )
    return Detector(
        pyramid,
        RegionProposals(
            fpn_channels, pyramid.strides, anchor_scale=anchor_scale, samples=anchor_samples, kept=proposals
        ),
        heads(pyramid, options),
        transform,
        frozen=stages.first(frozen_stages),
        freeze_batch_norm=freeze_batch_norm,
    )
