"""What looks at each proposal: torchvision's box and mask heads, with losses that are means over images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.roi_heads import RoIHeads, fastrcnn_loss, maskrcnn_loss
from torchvision.ops import MultiScaleRoIAlign

from isda.networks.detection.proposals import mean_over_images
from isda.networks.detection.pyramid import Pyramid
from isda.networks.detection.sampling import KeyedSampler, given_targets, keys_of

__all__ = [
    "BOX_CELLS",
    "MASK_CELLS",
    "HeadOptions",
    "MaskBranch",
    "RegionHeads",
    "initialise_predictors",
    "mask_losses",
    "pooler",
]

BOX_CELLS, MASK_CELLS = 7, 14


def pooler(pyramid: Pyramid, cells: int) -> MultiScaleRoIAlign:
    """Pools regions from the levels of a pyramid."""
    return MultiScaleRoIAlign(featmap_names=pyramid.names, output_size=cells, sampling_ratio=2)


def initialise_predictors(classes: nn.Linear, boxes: nn.Linear) -> None:
    """Small weights, of standard deviation 0.01 and 0.001, and no offset (Girshick, "Fast R-CNN", section 2.3)."""
    for layer, deviation in ((classes, 0.01), (boxes, 0.001)):
        nn.init.normal_(layer.weight, std=deviation)
        nn.init.zeros_(layer.bias)


class MaskBranch(nn.Module):
    """Four convolutions, a doubling and a mask per class: He et al., "Mask R-CNN", figure 4, right.

    Args:
        channels: of the maps, and of the convolutions.
        num_classes: with the background.
    """

    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        self.head = MaskRCNNHeads(channels, (channels,) * 4, dilation=1)
        self.predictor = MaskRCNNPredictor(channels, channels, num_classes)

    def forward(self, pooled: Tensor) -> Tensor:
        """Map (K, channels, 14, 14) to logits (K, num_classes, 28, 28)."""
        logits: Tensor = self.predictor(self.head(pooled))
        return logits


def mask_losses(logits: Tensor, boxes: list[Tensor], matched: list[Tensor], targets: list[dict[str, Any]]) -> Tensor:
    """The mean over images of the cross-entropy of the masks of their positive boxes."""
    parts = logits.split([len(one) for one in boxes])
    losses = [
        (maskrcnn_loss(part, [box], [target["masks"]], [target["labels"]], [index]),)
        for part, box, index, target in zip(parts, boxes, matched, targets, strict=True)
    ]
    return mean_over_images(losses)[0]


@dataclass(frozen=True, kw_only=True)
class HeadOptions:
    """What the heads of all detectors are told."""

    num_classes: int
    """With the background."""
    dim: int
    """Of the two hidden layers of a box head."""
    samples: int
    """Proposals per image that a head learns from."""
    masks: bool
    """Whether masks are learnt."""
    score_threshold: float
    """Least score of a detection."""
    detections: int
    """Per image, at most."""


class RegionHeads(RoIHeads):
    """Faster R-CNN's box head and, if asked for, Mask R-CNN's mask head. Parameters are named as torchvision does.

    Args:
        pyramid: what regions are pooled from.
        options: sizes and thresholds.
    """

    def __init__(self, pyramid: Pyramid, options: HeadOptions) -> None:
        channels = pyramid.out_channels
        mask_parts = (None, None, None)
        if options.masks:
            head = MaskRCNNHeads(channels, (channels,) * 4, dilation=1)
            mask_parts = (pooler(pyramid, MASK_CELLS), head, MaskRCNNPredictor(channels, channels, options.num_classes))
        super().__init__(
            pooler(pyramid, BOX_CELLS),
            TwoMLPHead(channels * BOX_CELLS**2, options.dim),
            FastRCNNPredictor(options.dim, options.num_classes),
            fg_iou_thresh=0.5,
            bg_iou_thresh=0.5,
            batch_size_per_image=options.samples,
            positive_fraction=0.25,
            bbox_reg_weights=None,
            score_thresh=options.score_threshold,
            nms_thresh=0.5,
            detections_per_img=options.detections,
            mask_roi_pool=mask_parts[0],
            mask_head=mask_parts[1],
            mask_predictor=mask_parts[2],
        )
        initialise_predictors(self.box_predictor.cls_score, self.box_predictor.bbox_pred)
        self.fg_bg_sampler = KeyedSampler(options.samples, 0.25, purpose=1)

    def forward(
        self,
        features: dict[str, Tensor],
        proposals: list[Tensor],
        image_shapes: list[tuple[int, int]],
        targets: list[dict[str, Any]] | None = None,
    ) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
        """Detections of each image, or in training the losses."""
        if not self.training:
            found: tuple[list[dict[str, Tensor]], dict[str, Tensor]] = super().forward(
                features, proposals, image_shapes
            )
            return found
        targets = given_targets(targets)
        self.fg_bg_sampler.keys = keys_of(targets)
        boxes, matched, labels, regression = self.select_training_samples(proposals, targets)
        logits, deltas = self.box_predictor(self.box_head(self.box_roi_pool(features, boxes, image_shapes)))
        counts = [len(one) for one in boxes]
        parts = zip(logits.split(counts), deltas.split(counts), labels, regression, strict=True)
        classifier, box = mean_over_images(
            fastrcnn_loss(some, theirs, [label], [truth]) for some, theirs, label, truth in parts
        )
        losses = {"loss_classifier": classifier, "loss_box_reg": box}
        if self.has_mask():
            positive = [(label > 0).nonzero().flatten() for label in labels]
            kept = [box[index] for box, index in zip(boxes, positive, strict=True)]
            which = [index[chosen] for index, chosen in zip(matched, positive, strict=True)]
            mask_logits = self.mask_predictor(self.mask_head(self.mask_roi_pool(features, kept, image_shapes)))
            losses["loss_mask"] = mask_losses(mask_logits, kept, which, targets)
        return [], losses
