"""Training and evaluation transforms by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from isda._utils.errors import expect_type
from isda.data import DataSet
from isda.data.augment import (
    AutoAugment,
    Compose,
    Cutout,
    HorizontalFlip,
    Normalize,
    RandAugment,
    RandomCrop,
    RandomResizedCrop,
    RandomTranslation,
    ResizeCenterCrop,
    crop_flip,
    imagenet_evaluation,
    imagenet_training,
    translate_flip,
)
from isda.data.augment.compose import ConvertChannels

Statistics = Sequence[float]


class InputFormat(NamedTuple):
    """How images of any kind are brought to what a pretrained network takes."""

    channels: int
    size: int
    """Side of the square that it sees."""
    resize: int
    """The shorter side before the central square is cut out."""


def _crop_flip(mean: Statistics, std: Statistics, data: str) -> Compose:
    # The paper does not say how the four pixels are filled; the authors' code reflects.
    return crop_flip(mean, std, padding_mode="reflect")


AUGMENTATIONS: dict[str, Callable[[Statistics, Statistics, str], Compose]] = {
    "none": lambda mean, std, data: Compose(Normalize(mean, std)),
    "crop": lambda mean, std, data: Compose(RandomCrop(4, "reflect"), Normalize(mean, std)),
    "crop-flip": _crop_flip,
    "translate": lambda mean, std, data: Compose(RandomTranslation(2), Normalize(mean, std)),
    "translate-flip": lambda mean, std, data: Compose(translate_flip(), Normalize(mean, std)),
    "cutout": lambda mean, std, data: crop_flip(mean, std, [Cutout(16)], "reflect"),
    "randaugment": lambda mean, std, data: crop_flip(mean, std, [RandAugment()], "reflect"),
    "autoaugment": lambda mean, std, data: crop_flip(mean, std, [AutoAugment(_policy(data)), Cutout(16)], "reflect"),
    "imagenet": lambda mean, std, data: imagenet_training(mean, std),
    "resized-crop": lambda mean, std, data: _resized_crop(mean, std),
}
"""Name -> the training pipeline for pixel statistics and the name of a data set."""

RESIZING = ("imagenet", "resized-crop")
"""Those that begin with a crop which brings images of any size to one."""
LARGE_WINDOW = (0.5, 1.0)
"""Ours: fine-tuning sees half to all of the image; ImageNet's training a twelfth to all."""


def _resized_crop(mean: Statistics, std: Statistics) -> Compose:
    return Compose(RandomResizedCrop(224, scale=LARGE_WINDOW), HorizontalFlip(), Normalize(mean, std))


def _policy(data: str) -> str:
    """The AutoAugment policy found for this data set, or CIFAR-10's, which transfers."""
    return next((name for name in ("svhn", "imagenet") if data.startswith(name)), "cifar10")


def training_pipeline(
    augment: str, mean: Statistics, std: Statistics, data: str, seen: InputFormat | None = None
) -> Compose:
    """The pipeline of one of AUGMENTATIONS, on images as a pretrained network sees them where there is one."""
    pipeline = AUGMENTATIONS[augment](mean, std, data)
    if seen is None:
        return pipeline
    if augment not in RESIZING:
        return Compose(ConvertChannels(seen.channels), ResizeCenterCrop(seen.resize, seen.size), *pipeline.transforms)
    crop, *rest = pipeline.transforms
    crop = expect_type(crop, RandomResizedCrop)
    return Compose(ConvertChannels(seen.channels), RandomResizedCrop(seen.size, crop.scale, crop.ratio), *rest)


def evaluation_pipeline(augment: str, mean: Statistics, std: Statistics, seen: InputFormat | None = None) -> Compose:
    """No randomness: the central crop for networks that see crops of resized images, else the image as it is."""
    if seen is not None:
        return Compose(ConvertChannels(seen.channels), ResizeCenterCrop(seen.resize, seen.size), Normalize(mean, std))
    return imagenet_evaluation(mean, std) if augment in RESIZING else Compose(Normalize(mean, std))


def default_augmentation(data: DataSet, large: bool, pretrained: bool = False) -> str:
    """What a data set is augmented with unless the user says: nothing that would change what a digit means."""
    if large or (data.image_size is None and not pretrained):
        return "imagenet"
    if data.name.startswith("digits"):
        return "none"
    if data.name.startswith("svhn"):
        return "crop"
    return "resized-crop" if pretrained else "crop-flip"
