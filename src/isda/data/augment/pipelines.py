"""The paper's pipelines, from uint8 images to the network's normalised float32 input."""

from __future__ import annotations

from collections.abc import Sequence

from .compose import Compose, Transform
from .crop import HorizontalFlip, RandomCrop, RandomTranslation
from .imagenet import RandomResizedCrop, ResizeCenterCrop
from .normalize import Normalize


def crop_flip(
    mean: Sequence[float], std: Sequence[float], extra: Sequence[Transform] = (), padding_mode: str = "constant"
) -> Compose:
    """CIFAR training: pad 4, random crop, flip, then `extra` on the uint8 images, then normalise.

    The paper's table of complementary augmentations has `extra` = [Cutout(16)], [RandAugment()] and
    [AutoAugment("cifar10"), Cutout(16)].

    Example:
        >>> from isda.data.augment import Cutout
        >>> crop_flip([0.5], [0.2], extra=[Cutout(16)]).transforms[2]
        Cutout(length=16, fill=0)
    """
    return Compose(RandomCrop(4, padding_mode), HorizontalFlip(), *extra, Normalize(mean, std))


def translate_flip(flip: bool = True) -> Compose:
    """Semi-supervised training: random 2-pixel translation, then (CIFAR, not SVHN) random flip; the dtype stays.

    The images are whitened (CIFAR) or normalised beforehand, so there is no normalisation here.
    """
    return Compose(RandomTranslation(2), HorizontalFlip()) if flip else Compose(RandomTranslation(2))


def imagenet_training(mean: Sequence[float], std: Sequence[float], extra: Sequence[Transform] = ()) -> Compose:
    """ImageNet training: random resized crop to 224, flip, then `extra` on the uint8 images, then normalise."""
    return Compose(RandomResizedCrop(224), HorizontalFlip(), *extra, Normalize(mean, std))


def imagenet_evaluation(mean: Sequence[float], std: Sequence[float]) -> Compose:
    """ImageNet single-crop evaluation: shorter side to 256, central 224 x 224, normalise. Needs no draws."""
    return Compose(ResizeCenterCrop(256, 224), Normalize(mean, std))
