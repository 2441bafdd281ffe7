"""Box and mask heads of Faster and Mask R-CNN, and the cascade of Cascade R-CNN (Cai and Vasconcelos, 2018).

Losses are means over images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.detection._utils import BoxCoder, Matcher
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.roi_heads import RoIHeads, fastrcnn_loss, maskrcnn_inference, maskrcnn_loss
from torchvision.ops import MultiScaleRoIAlign, batched_nms, box_iou, clip_boxes_to_image, remove_small_boxes

from isda.networks.detection.backbone import FeaturePyramid
from isda.networks.detection.proposals import KeyedSampler, image_keys, mean_over_images, require_targets

BOX_CELLS, MASK_CELLS = 7, 14


def region_pooler(pyramid: FeaturePyramid, cells: int) -> MultiScaleRoIAlign:
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

    def __init__(self, pyramid: FeaturePyramid, options: HeadOptions) -> None:
        channels = pyramid.out_channels
        mask_parts = (None, None, None)
        if options.masks:
            head = MaskRCNNHeads(channels, (channels,) * 4, dilation=1)
            mask_parts = (
                region_pooler(pyramid, MASK_CELLS),
                head,
                MaskRCNNPredictor(channels, channels, options.num_classes),
            )
        super().__init__(
            region_pooler(pyramid, BOX_CELLS),
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
        targets = require_targets(targets)
        self.fg_bg_sampler.keys = image_keys(targets)
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


class CascadeStageSettings(NamedTuple):
    """What makes a stage."""

    iou: float
    """A proposal is positive from this overlap with an object on."""
    box_weights: tuple[float, float, float, float]
    """Of the encoded boxes, which later stages move less."""
    loss_weight: float


CASCADE_STAGES = (
    CascadeStageSettings(0.5, (10.0, 10.0, 5.0, 5.0), 1.0),
    CascadeStageSettings(0.6, (20.0, 20.0, 10.0, 10.0), 0.5),
    CascadeStageSettings(0.7, (30.0, 30.0, 15.0, 15.0), 0.25),
)
"""The publication's thresholds; weights as in MMDetection's configuration."""


class SampledProposals(NamedTuple):
    """The proposals of one image that a stage learns from."""

    boxes: Tensor
    labels: Tensor
    matched: Tensor
    """The object that each overlaps most."""
    regression: Tensor
    """The encoded way to that object's box."""
    given: Tensor
    """Which of them are the objects' own boxes."""


class BoxStage(nn.Module):
    """One head: two hidden layers, class logits, and one box for all classes.

    Args:
        settings: threshold and weights.
        channels: of the maps.
        options: sizes.
        purpose: of its sampler.
    """

    def __init__(self, settings: CascadeStageSettings, channels: int, options: HeadOptions, *, purpose: int) -> None:
        super().__init__()
        self.head = TwoMLPHead(channels * BOX_CELLS**2, options.dim)
        self.cls_score = nn.Linear(options.dim, options.num_classes)
        self.bbox_pred = nn.Linear(options.dim, 4)
        initialise_predictors(self.cls_score, self.bbox_pred)
        self.loss_weight = settings.loss_weight
        self.matcher = Matcher(settings.iou, settings.iou, allow_low_quality_matches=False)
        self.coder = BoxCoder(settings.box_weights)
        self.sampler = KeyedSampler(options.samples, 0.25, purpose)

    def forward(self, pooled: Tensor) -> tuple[Tensor, Tensor]:
        """Class logits (K, C) and encoded boxes (K, 4) of pooled regions."""
        hidden = self.head(pooled)
        return self.cls_score(hidden), self.bbox_pred(hidden)

    @torch.no_grad()
    def sample(self, proposals: list[Tensor], targets: list[dict[str, Any]]) -> list[SampledProposals]:
        """Proposals and the objects' own boxes, matched and drawn from."""
        matches = []
        for boxes, target in zip(proposals, targets, strict=True):
            own = target["boxes"].to(boxes.dtype)
            together = torch.cat([boxes, own])
            if len(own):
                matched = self.matcher(box_iou(own, together))
                labels = torch.where(matched >= 0, target["labels"][matched.clamp(min=0)], 0)
            else:
                own = together.new_zeros(1, 4)
                matched = labels = torch.zeros(len(together), dtype=torch.int64, device=together.device)
            matches.append((together, labels, matched.clamp(min=0), own, len(boxes)))
        self.sampler.keys = image_keys(targets)
        positives, negatives = self.sampler([labels for _, labels, *_ in matches])
        found = []
        for (boxes, labels, matched, own, proposed), positive, negative in zip(
            matches, positives, negatives, strict=True
        ):
            drawn = (positive | negative).nonzero().flatten()
            chosen, truth = boxes[drawn], own[matched[drawn]]
            regression = self.coder.encode([truth], [chosen])[0]
            found.append(SampledProposals(chosen, labels[drawn], matched[drawn], regression, drawn >= proposed))
        return found

    def losses(self, logits: Tensor, deltas: Tensor, sampled: list[SampledProposals]) -> tuple[Tensor, Tensor]:
        """Cross-entropy, and smooth L1 (beta 1) of the boxes of positive proposals; means over images, weighted."""
        counts = [len(one.boxes) for one in sampled]
        parts = []
        for some, theirs, one in zip(logits.split(counts), deltas.split(counts), sampled, strict=True):
            positive = (one.labels > 0).nonzero().flatten()
            box = F.smooth_l1_loss(theirs[positive], one.regression[positive], beta=1.0, reduction="sum")
            parts.append((F.cross_entropy(some, one.labels), box / max(1, len(one.labels))))
        classifier, box = mean_over_images(parts)
        return self.loss_weight * classifier, self.loss_weight * box

    def refined(self, deltas: Tensor, boxes: list[Tensor], image_shapes: list[tuple[int, int]]) -> list[Tensor]:
        """The boxes that this stage makes of those that it saw, inside their images."""
        counts = [len(one) for one in boxes]
        moved = self.coder.decode(deltas.detach(), boxes).reshape(-1, 4).split(counts)
        return [clip_boxes_to_image(one, shape) for one, shape in zip(moved, image_shapes, strict=True)]


class CascadeHeads(nn.Module):
    """Three box stages and, if asked for, a mask branch for each; their scores and masks are averaged at test.

    Args:
        pyramid: what regions are pooled from.
        options: sizes and thresholds.
    """

    def __init__(self, pyramid: FeaturePyramid, options: HeadOptions) -> None:
        super().__init__()
        channels = pyramid.out_channels
        self.box_roi_pool = region_pooler(pyramid, BOX_CELLS)
        self.stages = nn.ModuleList(
            BoxStage(one, channels, options, purpose=number) for number, one in enumerate(CASCADE_STAGES, start=1)
        )
        self.mask_roi_pool = region_pooler(pyramid, MASK_CELLS) if options.masks else None
        self.mask_branches = nn.ModuleList(
            MaskBranch(channels, options.num_classes) for _ in CASCADE_STAGES if options.masks
        )
        self.score_thresh, self.nms_thresh, self.detections_per_img = options.score_threshold, 0.5, options.detections

    def forward(
        self,
        features: dict[str, Tensor],
        proposals: list[Tensor],
        image_shapes: list[tuple[int, int]],
        targets: list[dict[str, Any]] | None = None,
    ) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
        """Detections of each image, or in training the losses."""
        if self.training:
            return [], self._losses(features, proposals, image_shapes, require_targets(targets))
        return self._detections(features, proposals, image_shapes), {}

    def _stages(self) -> list[BoxStage]:
        return cast(list[BoxStage], list(self.stages))

    def _losses(
        self,
        features: dict[str, Tensor],
        proposals: list[Tensor],
        image_shapes: list[tuple[int, int]],
        targets: list[dict[str, Any]],
    ) -> dict[str, Tensor]:
        losses: dict[str, Tensor] = {}
        for number, stage in enumerate(self._stages()):
            sampled = stage.sample(proposals, targets)
            boxes = [one.boxes for one in sampled]
            logits, deltas = stage(self.box_roi_pool(features, boxes, image_shapes))
            classifier, box = stage.losses(logits, deltas, sampled)
            losses |= {f"loss_classifier_{number + 1}": classifier, f"loss_box_reg_{number + 1}": box}
            if self.mask_roi_pool is not None:
                positive = [(one.labels > 0).nonzero().flatten() for one in sampled]
                kept = [one.boxes[index] for one, index in zip(sampled, positive, strict=True)]
                which = [one.matched[index] for one, index in zip(sampled, positive, strict=True)]
                masks = self.mask_branches[number](self.mask_roi_pool(features, kept, image_shapes))
                losses[f"loss_mask_{number + 1}"] = stage.loss_weight * mask_losses(masks, kept, which, targets)
            # The next stage is given the objects' own boxes again.
            refined = stage.refined(deltas, boxes, image_shapes)
            proposals = [_with_positive_area(box[~one.given]) for box, one in zip(refined, sampled, strict=True)]
        return losses

    def _detections(
        self, features: dict[str, Tensor], proposals: list[Tensor], image_shapes: list[tuple[int, int]]
    ) -> list[dict[str, Tensor]]:
        scores: list[Tensor] = []
        boxes = proposals
        for stage in self._stages():
            logits, deltas = stage(self.box_roi_pool(features, boxes, image_shapes))
            scores.append(logits.softmax(-1))
            boxes = stage.refined(deltas, boxes, image_shapes)
        averaged = torch.stack(scores).mean(0).split([len(one) for one in boxes])
        found = [self._best(*one) for one in zip(boxes, averaged, strict=True)]
        if self.mask_roi_pool is not None:
            kept, labels = [one["boxes"] for one in found], [one["labels"] for one in found]
            pooled = self.mask_roi_pool(features, kept, image_shapes)
            by_stage = [maskrcnn_inference(branch(pooled), labels) for branch in self.mask_branches]
            for one, masks in zip(found, zip(*by_stage, strict=True), strict=True):
                one["masks"] = torch.stack(masks).mean(0)
        return found

    def _best(self, boxes: Tensor, scores: Tensor) -> dict[str, Tensor]:
        """The detections of an image: each class's boxes that score enough and do not overlap better ones."""
        row, label = (scores[:, 1:] > self.score_thresh).nonzero(as_tuple=True)
        boxes, labels, scores = boxes[row], label + 1, scores[row, label + 1]
        kept = remove_small_boxes(boxes, min_size=1e-2)
        boxes, labels, scores = boxes[kept], labels[kept], scores[kept]
        kept = batched_nms(boxes, scores, labels, self.nms_thresh)[: self.detections_per_img]
        return {"boxes": boxes[kept], "labels": labels[kept], "scores": scores[kept]}


def _with_positive_area(boxes: Tensor) -> Tensor:
    """Without those that have no area left, whose way to an object could not be encoded."""
    return boxes[remove_small_boxes(boxes, min_size=1e-2)]
