"""Batched augmentation: every transform treats N images at once on their device, with a fresh draw per sample.

A transform is called as `transform(images, draws)`; `Draws` holds one random stream per sample, so the result for a
sample does not depend on the batch it is in.
"""

from isda.data.augment.compose import Compose, Transform
from isda.data.augment.crop import HorizontalFlip, RandomCrop, RandomTranslation
from isda.data.augment.cutout import Cutout
from isda.data.augment.dense import ScaleMirrorCrop
from isda.data.augment.draws import Draws
from isda.data.augment.imagenet import RandomResizedCrop, ResizeCenterCrop
from isda.data.augment.normalise import Normalize
from isda.data.augment.operations import OPERATION_NAMES, apply_operations
from isda.data.augment.pipelines import crop_flip, imagenet_evaluation, imagenet_training, translate_flip
from isda.data.augment.policies import AutoAugment, RandAugment

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
