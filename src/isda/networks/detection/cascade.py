"""Cascade R-CNN (Cai and Vasconcelos, 2018): box heads in a row, each trained on better boxes than the one before."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.detection._utils import BoxCoder, Matcher
from torchvision.models.detection.faster_rcnn import TwoMLPHead
from torchvision.models.detection.roi_heads import maskrcnn_inference
from torchvision.ops import batched_nms, box_iou, clip_boxes_to_image, remove_small_boxes

from isda.networks.detection.heads import (
    BOX_CELLS,
    MASK_CELLS,
    HeadOptions,
    MaskBranch,
    initialise_predictors,
    mask_losses,
    pooler,
)
from isda.networks.detection.proposals import mean_over_images
from isda.networks.detection.pyramid import Pyramid
from isda.networks.detection.sampling import KeyedSampler, given_targets, keys_of

__all__ = ["STAGES", "BoxStage", "CascadeHeads", "Sampled", "StageSettings"]


class StageSettings(NamedTuple):
    """What makes a stage."""

    iou: float
    """A proposal is positive from this overlap with an object on."""
    box_weights: tuple[float, float, float, float]
    """Of the encoded boxes, which later stages move less."""
    loss_weight: float


STAGES = (
    StageSettings(0.5, (10.0, 10.0, 5.0, 5.0), 1.0),
    StageSettings(0.6, (20.0, 20.0, 10.0, 10.0), 0.5),
    StageSettings(0.7, (30.0, 30.0, 15.0, 15.0), 0.25),
)
"""The publication's thresholds; weights as in MMDetection's configuration."""


class Sampled(NamedTuple):
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

    def __init__(self, settings: StageSettings, channels: int, options: HeadOptions, *, purpose: int) -> None:
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
    def sample(self, proposals: list[Tensor], targets: list[dict[str, Any]]) -> list[Sampled]:
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
        self.sampler.keys = keys_of(targets)
        positives, negatives = self.sampler([labels for _, labels, *_ in matches])
        found = []
        for (boxes, labels, matched, own, proposed), positive, negative in zip(
            matches, positives, negatives, strict=True
        ):
            drawn = (positive | negative).nonzero().flatten()
            chosen, truth = boxes[drawn], own[matched[drawn]]
            regression = self.coder.encode([truth], [chosen])[0]
            found.append(Sampled(chosen, labels[drawn], matched[drawn], regression, drawn >= proposed))
        return found

    def losses(self, logits: Tensor, deltas: Tensor, sampled: list[Sampled]) -> tuple[Tensor, Tensor]:
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

    def __init__(self, pyramid: Pyramid, options: HeadOptions) -> None:
        super().__init__()
        channels = pyramid.out_channels
        self.box_roi_pool = pooler(pyramid, BOX_CELLS)
        self.stages = nn.ModuleList(
            BoxStage(one, channels, options, purpose=number) for number, one in enumerate(STAGES, start=1)
        )
        self.mask_roi_pool = pooler(pyramid, MASK_CELLS) if options.masks else None
        self.mask_branches = nn.ModuleList(MaskBranch(channels, options.num_classes) for _ in STAGES if options.masks)
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
            return [], self._losses(features, proposals, image_shapes, given_targets(targets))
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
            proposals = [_whole(box[~one.given]) for box, one in zip(refined, sampled, strict=True)]
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


def _whole(boxes: Tensor) -> Tensor:
    """Without those that have no area left, whose way to an object could not be encoded."""
    return boxes[remove_small_boxes(boxes, min_size=1e-2)]
