"""Pipelines for the paper's experiments, from uint8 images to the network's normalised float32 input.

What the paper leaves open (padding, sizes, magnitudes) is said with each of them, and whose choice ours is.
"""

from __future__ import annotations

from collections.abc import Sequence

from isda.data.augment.compose import Compose, Transform
from isda.data.augment.crop import HorizontalFlip, RandomCrop, RandomTranslation
from isda.data.augment.imagenet import RandomResizedCrop, ResizeCenterCrop
from isda.data.augment.normalise import Normalize

__all__ = ["crop_flip", "imagenet_evaluation", "imagenet_training", "translate_flip"]


def crop_flip(
    mean: Sequence[float], std: Sequence[float], extra: Sequence[Transform] = (), padding_mode: str = "constant"
) -> Compose:
    """CIFAR training: pad 4, random crop, flip, then `extra` on the uint8 images, then normalise.

    The paper says "4 pixels are padded at each side", not with what; the authors' code reflects the image.
    Its table of complementary augmentations names Cutout, RandAugment and AutoAugment without their settings:

    - `extra=[Cutout(16)]`: DeVries and Taylor's size for CIFAR-10 (8 for CIFAR-100); 16 for both in the authors' code.
    - `extra=[AutoAugment("cifar10"), Cutout(16)]`: Cubuk et al. (2019) let Cutout 16 follow the policy, and the
      authors' code does so too; the policy found on CIFAR-10 serves CIFAR-100.
    - `extra=[RandAugment()]`: our choice of torchvision's defaults, two operations at magnitude 9 of 31. Cubuk et al.
      (2020) search both for each network and data set; the authors' code has no RandAugment.

    Example:
        >>> from isda.data.augment import Cutout
        >>> crop_flip([0.5], [0.2], extra=[Cutout(16)]).transforms[2]
        Cutout(length=16, fill=0)
    """
    return Compose(RandomCrop(4, padding_mode), HorizontalFlip(), *extra, Normalize(mean, std))


def translate_flip(flip: bool = True) -> Compose:
    """Semi-supervised training: random 2-pixel translation, then (CIFAR, not SVHN) random flip; the dtype stays.

    The paper's "random 2x2 translation": up to 2 pixels each way as in Laine and Aila (2017); that the border is
    reflected is ours. The images are whitened (CIFAR) or normalised beforehand, so there is no normalisation here.
    """
    return Compose(RandomTranslation(2), HorizontalFlip()) if flip else Compose(RandomTranslation(2))


def imagenet_training(mean: Sequence[float], std: Sequence[float], extra: Sequence[Transform] = ()) -> Compose:
    """ImageNet training: random resized crop to 224, flip, then `extra` on the uint8 images, then normalise.

    The paper points to the settings of earlier papers, some of which shift colours too; the authors' code has the crop
    and the flip only, and so has this.
    """
    return Compose(RandomResizedCrop(224), HorizontalFlip(), *extra, Normalize(mean, std))


def imagenet_evaluation(mean: Sequence[float], std: Sequence[float]) -> Compose:
    """ImageNet single-crop evaluation: shorter side to 256, central 224 x 224, normalise. Needs no draws."""
    return Compose(ResizeCenterCrop(256, 224), Normalize(mean, std))
