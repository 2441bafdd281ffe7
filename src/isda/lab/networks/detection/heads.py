"""Box and mask heads of Faster and Mask R-CNN, and the cascade of Cascade R-CNN (Cai and Vasconcelos, 2018).

Losses are means over images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.detection._utils import BoxCoder, Matcher
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.roi_heads import RoIHeads, fastrcnn_loss, maskrcnn_inference, maskrcnn_loss
from torchvision.ops import MultiScaleRoIAlign, batched_nms, box_iou, clip_boxes_to_image, remove_small_boxes

from isda.lab.choices import expect_type
from isda.lab.networks.detection.backbone import FeaturePyramid
from isda.lab.networks.detection.proposals import KeyedSampler, mean_over_images

BOX_CELLS, MASK_CELLS = 7, 14


Losses = dict[str, Tensor]
Shapes = list[tuple[int, int]]
Targets = list[dict[str, Any]]


def region_pooler(pyramid: FeaturePyramid, cells: int) -> MultiScaleRoIAlign:
    """A module that pools regions from the levels of a pyramid to cells x cells."""
    return MultiScaleRoIAlign(featmap_names=pyramid.names, output_size=cells, sampling_ratio=2)


def initialise_predictors(classes: nn.Linear, boxes: nn.Linear) -> None:
    """Weights of standard deviation 0.01 and 0.001, and zero bias (Girshick, "Fast R-CNN", section 2.3)."""
    for layer, deviation in ((classes, 0.01), (boxes, 0.001)):
        nn.init.normal_(layer.weight, std=deviation)
        nn.init.zeros_(layer.bias)


class MaskBranch(nn.Module):
    """Four convolutions, upsampling by 2 and a mask per class (He et al., "Mask R-CNN", figure 4, right)."""

    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        self.head = MaskRCNNHeads(channels, (channels,) * 4, dilation=1)
        self.predictor = MaskRCNNPredictor(channels, channels, num_classes)

    def forward(self, pooled: Tensor) -> Tensor:
        """Map (K, channels, 14, 14) to logits (K, num_classes, 28, 28)."""
        logits: Tensor = self.predictor(self.head(pooled))
        return logits


def positive_boxes(
    boxes: list[Tensor], matched: list[Tensor], labels: list[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """The boxes of each image that have an object, and the index of that object."""
    positive = [(label > 0).nonzero().flatten() for label in labels]
    return (
        [box[index] for box, index in zip(boxes, positive, strict=True)],
        [objects[index] for objects, index in zip(matched, positive, strict=True)],
    )


def mask_losses(logits: Tensor, boxes: list[Tensor], matched: list[Tensor], targets: list[dict[str, Any]]) -> Tensor:
    """The mean over images of the cross-entropy of the masks of their positive boxes."""
    parts = logits.split([len(box) for box in boxes])
    losses = [
        (maskrcnn_loss(part, [box], [target["masks"]], [target["labels"]], [index]),)
        for part, box, index, target in zip(parts, boxes, matched, targets, strict=True)
    ]
    return mean_over_images(losses)[0]


@dataclass(frozen=True, kw_only=True)
class HeadOptions:
    """Sizes and thresholds of the heads of all detectors."""

    num_classes: int  # including the background
    dim: int  # units of the two hidden layers of a box head
    samples: int  # proposals per image in the loss
    masks: bool
    score_threshold: float
    detections: int  # per image, at most


class RegionHeads(RoIHeads):
    """Faster R-CNN's box head and optionally Mask R-CNN's mask head, with torchvision's parameter names."""

    def __init__(self, pyramid: FeaturePyramid, options: HeadOptions) -> None:
        channels = pyramid.out_channels
        masks = MaskBranch(channels, options.num_classes) if options.masks else None
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
            mask_roi_pool=region_pooler(pyramid, MASK_CELLS) if masks else None,
            mask_head=masks.head if masks else None,
            mask_predictor=masks.predictor if masks else None,
        )
        initialise_predictors(self.box_predictor.cls_score, self.box_predictor.bbox_pred)
        self.fg_bg_sampler = KeyedSampler(options.samples, 0.25, purpose=1)

    def forward(
        self,
        features: dict[str, Tensor],
        proposals: list[Tensor],
        image_shapes: Shapes,
        targets: Targets | None = None,
    ) -> tuple[list[dict[str, Tensor]], Losses]:
        """Detections of each image, or in training the losses."""
        if not self.training:
            detections, losses = super().forward(features, proposals, image_shapes)
            return detections, losses
        targets = expect_type(targets, list)  # torchvision's detector has refused None
        self.fg_bg_sampler.take_keys(targets)
        boxes, matched, labels, regression = self.select_training_samples(proposals, targets)
        logits, deltas = self.box_predictor(self.box_head(self.box_roi_pool(features, boxes, image_shapes)))
        counts = [len(box) for box in boxes]
        images = zip(logits.split(counts), deltas.split(counts), labels, regression, strict=True)
        classifier, box = mean_over_images(fastrcnn_loss(z, delta, [label], [r]) for z, delta, label, r in images)
        losses = {"loss_classifier": classifier, "loss_box_reg": box}
        if self.has_mask():
            boxes, matched = positive_boxes(boxes, matched, labels)
            mask_logits = self.mask_predictor(self.mask_head(self.mask_roi_pool(features, boxes, image_shapes)))
            losses["loss_mask"] = mask_losses(mask_logits, boxes, matched, targets)
        return [], losses


CASCADE_STAGES = (
    (0.5, (10.0, 10.0, 5.0, 5.0), 1.0),
    (0.6, (20.0, 20.0, 10.0, 10.0), 0.5),
    (0.7, (30.0, 30.0, 15.0, 15.0), 0.25),
)
"""Of each stage the least overlap of a positive proposal, factors on encoded boxes, and the weight of its losses.

The thresholds are the publication's; the weights those of MMDetection's configuration.
"""


class SampledProposals(NamedTuple):
    """The proposals of one image in the loss of a stage."""

    boxes: Tensor
    labels: Tensor
    matched: Tensor  # index of the object that each overlaps most
    regression: Tensor  # the box of that object, encoded relative to the proposal
    ground_truth: Tensor  # whether it is the box of an object rather than a proposal


class BoxStage(nn.Module):
    """One head of the cascade: two hidden layers, class logits, and one box for all classes."""

    def __init__(self, stage: int, channels: int, options: HeadOptions) -> None:
        super().__init__()
        overlap, box_weights, self.loss_weight = CASCADE_STAGES[stage]
        self.head = TwoMLPHead(channels * BOX_CELLS**2, options.dim)
        self.cls_score = nn.Linear(options.dim, options.num_classes)
        self.bbox_pred = nn.Linear(options.dim, 4)
        initialise_predictors(self.cls_score, self.bbox_pred)
        self.matcher = Matcher(overlap, overlap, allow_low_quality_matches=False)
        self.coder = BoxCoder(box_weights)
        self.sampler = KeyedSampler(options.samples, 0.25, purpose=stage + 1)

    def forward(self, pooled: Tensor) -> tuple[Tensor, Tensor]:
        """Class logits (K, C) and encoded boxes (K, 4) of pooled regions."""
        hidden = self.head(pooled)
        return self.cls_score(hidden), self.bbox_pred(hidden)

    @torch.no_grad()
    def sample(self, proposals: list[Tensor], targets: list[dict[str, Any]]) -> list[SampledProposals]:
        """Match proposals and ground-truth boxes to objects, and sample from them."""
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
        self.sampler.take_keys(targets)
        positives, negatives = self.sampler([labels for _, labels, *_ in matches])
        sampled = []
        for (boxes, labels, matched, own, num_proposals), positive, negative in zip(
            matches, positives, negatives, strict=True
        ):
            drawn = (positive | negative).nonzero().flatten()
            chosen, truth = boxes[drawn], own[matched[drawn]]
            regression = self.coder.encode([truth], [chosen])[0]
            sampled.append(SampledProposals(chosen, labels[drawn], matched[drawn], regression, drawn >= num_proposals))
        return sampled

    def losses(self, logits: Tensor, deltas: Tensor, sampled: list[SampledProposals]) -> tuple[Tensor, Tensor]:
        """Weighted means over images of the cross-entropy and of smooth L1 (beta 1) for boxes of positive proposals."""
        counts = [len(image.boxes) for image in sampled]
        losses = []
        for z, delta, image in zip(logits.split(counts), deltas.split(counts), sampled, strict=True):
            positive = (image.labels > 0).nonzero().flatten()
            box = F.smooth_l1_loss(delta[positive], image.regression[positive], beta=1.0, reduction="sum")
            losses.append((F.cross_entropy(z, image.labels), box / max(1, len(image.labels))))
        classifier, box = mean_over_images(losses)
        return self.loss_weight * classifier, self.loss_weight * box

    def refined(self, deltas: Tensor, boxes: list[Tensor], image_shapes: list[tuple[int, int]]) -> list[Tensor]:
        """The boxes that this stage predicts from its input boxes, clipped to their images."""
        moved = self.coder.decode(deltas.detach(), boxes).reshape(-1, 4).split([len(box) for box in boxes])
        return [clip_boxes_to_image(box, shape) for box, shape in zip(moved, image_shapes, strict=True)]


class CascadeHeads(nn.Module):
    """Three box stages, optionally with a mask branch each; scores and masks are averaged at test time."""

    def __init__(self, pyramid: FeaturePyramid, options: HeadOptions) -> None:
        super().__init__()
        channels = pyramid.out_channels
        self.box_roi_pool = region_pooler(pyramid, BOX_CELLS)
        stages = range(len(CASCADE_STAGES))
        self.stages = nn.ModuleList(BoxStage(stage, channels, options) for stage in stages)
        self.mask_roi_pool = region_pooler(pyramid, MASK_CELLS) if options.masks else None
        self.mask_branches = nn.ModuleList(MaskBranch(channels, options.num_classes) for _ in stages if options.masks)
        self.score_thresh, self.nms_thresh, self.detections_per_img = options.score_threshold, 0.5, options.detections

    def forward(
        self,
        features: dict[str, Tensor],
        proposals: list[Tensor],
        image_shapes: Shapes,
        targets: Targets | None = None,
    ) -> tuple[list[dict[str, Tensor]], Losses]:
        """Detections of each image, or in training the losses."""
        if not self.training:
            return self._detections(features, proposals, image_shapes), {}
        targets = expect_type(targets, list)  # torchvision's detector has refused None
        return [], self._losses(features, proposals, image_shapes, targets)

    def _losses(
        self, features: dict[str, Tensor], proposals: list[Tensor], image_shapes: Shapes, targets: Targets
    ) -> Losses:
        losses: Losses = {}
        for number, module in enumerate(self.stages):
            stage = expect_type(module, BoxStage)
            sampled = stage.sample(proposals, targets)
            boxes = [image.boxes for image in sampled]
            logits, deltas = stage(self.box_roi_pool(features, boxes, image_shapes))
            classifier, box = stage.losses(logits, deltas, sampled)
            losses |= {f"loss_classifier_{number + 1}": classifier, f"loss_box_reg_{number + 1}": box}
            if self.mask_roi_pool is not None:
                positive, matched = positive_boxes(boxes, [i.matched for i in sampled], [i.labels for i in sampled])
                masks = self.mask_branches[number](self.mask_roi_pool(features, positive, image_shapes))
                losses[f"loss_mask_{number + 1}"] = stage.loss_weight * mask_losses(masks, positive, matched, targets)
            # The next stage adds the ground-truth boxes itself; a box without area could not be encoded.
            refined = stage.refined(deltas, boxes, image_shapes)
            refined = [box[~image.ground_truth] for box, image in zip(refined, sampled, strict=True)]
            proposals = [box[remove_small_boxes(box, min_size=1e-2)] for box in refined]
        return losses

    def _detections(
        self, features: dict[str, Tensor], proposals: list[Tensor], image_shapes: Shapes
    ) -> list[dict[str, Tensor]]:
        scores: list[Tensor] = []
        boxes = proposals
        for module in self.stages:
            stage = expect_type(module, BoxStage)
            logits, deltas = stage(self.box_roi_pool(features, boxes, image_shapes))
            scores.append(logits.softmax(-1))
            boxes = stage.refined(deltas, boxes, image_shapes)
        averaged = torch.stack(scores).mean(0).split([len(box) for box in boxes])
        detections = list(map(self._suppress, boxes, averaged))
        if self.mask_roi_pool is not None:
            kept, labels = [image["boxes"] for image in detections], [image["labels"] for image in detections]
            pooled = self.mask_roi_pool(features, kept, image_shapes)
            by_stage = [maskrcnn_inference(branch(pooled), labels) for branch in self.mask_branches]
            for image, masks in zip(detections, zip(*by_stage, strict=True), strict=True):
                image["masks"] = torch.stack(masks).mean(0)
        return detections

    def _suppress(self, boxes: Tensor, scores: Tensor) -> dict[str, Tensor]:
        """The detections of an image: boxes above the threshold after non-maximum suppression per class."""
        row, label = (scores[:, 1:] > self.score_thresh).nonzero(as_tuple=True)
        boxes, labels, scores = boxes[row], label + 1, scores[row, label + 1]
        kept = remove_small_boxes(boxes, min_size=1e-2)
        boxes, labels, scores = boxes[kept], labels[kept], scores[kept]
        kept = batched_nms(boxes, scores, labels, self.nms_thresh)[: self.detections_per_img]
        return {"boxes": boxes[kept], "labels": labels[kept], "scores": scores[kept]}
