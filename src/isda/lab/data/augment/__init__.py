"""Batched augmentation: each transform processes N images at once on their device, with its own draw per sample.

A transform is called as `transform(images, draws)`; `Draws` holds one random stream per sample, so the result for a
sample does not depend on the batch it is in.
"""

from isda.lab.data.augment.compose import Compose, Normalize, Transform
from isda.lab.data.augment.crops import (
    Cutout,
    HorizontalFlip,
    RandomCrop,
    RandomResizedCrop,
    RandomTranslation,
    ResizeCenterCrop,
    crop_flip,
    imagenet_evaluation,
    imagenet_training,
    translate_flip,
)
from isda.lab.data.augment.dense import ScaleMirrorCrop
from isda.lab.data.augment.draws import Draws
from isda.lab.data.augment.operations import OPERATION_NAMES, apply_operations
from isda.lab.data.augment.policies import AutoAugment, RandAugment

__all__ = [
    "OPERATION_NAMES",
    "AutoAugment",
    "Compose",
    "Cutout",
    "Draws",
    "HorizontalFlip",
    "Normalize",
    "RandAugment",
    "RandomCrop",
    "RandomResizedCrop",
    "RandomTranslation",
    "ResizeCenterCrop",
    "ScaleMirrorCrop",
    "Transform",
    "apply_operations",
    "crop_flip",
    "imagenet_evaluation",
    "imagenet_training",
    "translate_flip",
]
