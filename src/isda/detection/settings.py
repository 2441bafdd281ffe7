"""What a user can ask of a detection run. The text below each setting is its help on the command line."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from isda.engine.settings import RunSettings

__all__ = ["Settings"]


@dataclass(frozen=True, kw_only=True)
class Settings(RunSettings):
    """Settings of a run; what is left out comes from MMDetection's 1x recipe, or is what the help says."""

    data: str | None = None
    """A folder in COCO's format, by its path or its name under the data root; coco if left out."""
    network: str | None = None
    """faster-rcnn (if left out), mask-rcnn, cascade-rcnn or cascade-mask-rcnn."""
    method: str | None = None
    """multi-task; initial weights to compare follow a colon: multi-task:backbone=runs/mine."""
    backbone: str | None = None
    """What the detector is built on: a run folder of `isda train`, a network (resnet-50 if left out), or timm:NAME."""
    backbone_weights: str | None = None
    """Its initial weights: a file, or torchvision or timm for theirs from ImageNet. A run folder has its own; the
    others are random if this is left out."""
    backbone_options: dict[str, str] = field(default_factory=dict)
    """Options of the backbone as KEY VALUE pairs, such as width 0.5."""
    batch_norm: Literal["frozen", "trained"] | None = None
    """Of the backbone; frozen if left out, but trained where the backbone's weights are random."""
    frozen_stages: int | None = None
    """The stem and so many stages keep their weights; 1 if left out, 0 where they are random or the backbone timm's."""
    min_size: int | None = None
    """Pixels of the short side of images as the network sees them; 800 if left out."""
    max_size: int | None = None
    """Most pixels of the long side; 1333 if left out."""
    fpn_channels: int | None = None
    """Channels of the feature pyramid; 256 if left out."""
    head_dim: int | None = None
    """Width of the hidden layers of the box heads; 1024 if left out."""
    anchor_scale: float | None = None
    """Side of the anchors in strides of their level; 8 if left out."""
    proposals: int | None = None
    """Regions per image that the heads look at; 1000 if left out."""
    box_samples: int | None = None
    """Regions per image that the heads learn from; 512 if left out."""
    warmup_steps: int | None = None
    """Steps in which the learning rate rises from a thousandth; 500 if left out, at most a tenth of the run."""
