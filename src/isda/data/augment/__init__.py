"""Batched augmentation: every transform treats N images at once on their device, with a fresh draw per sample.

A transform is called as `transform(images, draws)`; `Draws` holds one random stream per sample, so the result for a
sample does not depend on the batch it is in.
"""

from .compose import Compose, Transform
from .crop import HorizontalFlip, RandomCrop, RandomTranslation
from .cutout import Cutout
from .draws import Draws
from .imagenet import RandomResizedCrop, ResizeCenterCrop
from .normalize import Normalize
from .operations import OPERATION_NAMES, apply_operations
from .pipelines import crop_flip, imagenet_evaluation, imagenet_training, translate_flip
from .policies import AutoAugment, RandAugment

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
    "Transform",
    "apply_operations",
    "crop_flip",
    "imagenet_evaluation",
    "imagenet_training",
    "translate_flip",
]
