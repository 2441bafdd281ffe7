"""Training and evaluation transforms by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from isda.lab.choices import check_choice, expect_type
from isda.lab.data import DataSet
from isda.lab.data.augment import (
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
    Transform,
    crop_flip,
    imagenet_evaluation,
    imagenet_training,
    translate_flip,
)
from isda.lab.data.augment.compose import ConvertChannels

Statistics = Sequence[float]


class InputFormat(NamedTuple):
    """The input images of a pretrained network."""

    channels: int
    size: int
    """Side of the square input."""
    resize: int
    """The shorter side before the central square is cropped, in evaluation."""


def _crop_flip(mean: Statistics, std: Statistics, data: str) -> Compose:
    # The paper does not specify the padding; the authors' code reflects.
    return crop_flip(mean, std, padding_mode="reflect")


AUGMENTATIONS: dict[str, Callable[[Statistics, Statistics, str], Compose]] = {
    "none": lambda mean, std, data: Compose(Normalize(mean, std)),
    "crop": lambda mean, std, data: Compose(RandomCrop(4, "reflect"), Normalize(mean, std)),
    "crop-flip": _crop_flip,
    "translate": lambda mean, std, data: Compose(RandomTranslation(2), Normalize(mean, std)),
    "translate-flip": lambda mean, std, data: Compose(translate_flip(), Normalize(mean, std)),
    "cutout": lambda mean, std, data: crop_flip(mean, std, [Cutout(16)], "reflect"),
    "randaugment": lambda mean, std, data: _rand_augment(mean, std),
    "autoaugment": lambda mean, std, data: crop_flip(mean, std, [AutoAugment(_policy(data)), Cutout(16)], "reflect"),
    "imagenet": lambda mean, std, data: imagenet_training(mean, std),
    "resized-crop": lambda mean, std, data: _resized_crop(mean, std),
}
"""Name -> the training pipeline for pixel statistics and the name of a data set."""

RESIZING = ("imagenet", "resized-crop")
"""Those that begin with a crop of fixed size, for images of any size."""
LARGE_WINDOW = (0.5, 1.0)
"""Ours: the area of crops for fine-tuning; ImageNet training has a twelfth to all of the image."""


def _resized_crop(mean: Statistics, std: Statistics) -> Compose:
    return Compose(RandomResizedCrop(224, scale=LARGE_WINDOW), HorizontalFlip(), Normalize(mean, std))


def _rand_augment(mean: Statistics, std: Statistics, settings: tuple[int, int] = (2, 9)) -> Compose:
    return crop_flip(mean, std, [RandAugment(*settings)], "reflect")


def check_augmentation(name: str) -> str:
    """The name of an augmentation: one of AUGMENTATIONS, or randaugment-N-M.

    Raises:
        ValueError: there is no such augmentation, or N or M is out of range.

    Example:
        >>> check_augmentation("randaugment-3-5")
        'randaugment-3-5'
    """
    if (settings := _rand_augment_settings(name)) is None:
        return check_choice("augment", name, AUGMENTATIONS)
    if not 1 <= settings[0] <= MOST_OPERATIONS:
        raise ValueError(f"N of augment=randaugment-N-M must be from 1 to {MOST_OPERATIONS}, got {name}")
    RandAugment(*settings)
    return name


MOST_OPERATIONS = 14
"""Of RandAugment on an image: as many as there are operations."""


def _rand_augment_settings(name: str) -> tuple[int, int] | None:
    """N and M of ``randaugment-N-M``."""
    match = re.fullmatch(r"randaugment-(\d{1,3})-(\d{1,3})", name)
    return None if match is None else (int(match[1]), int(match[2]))


def _policy(data: str) -> str:
    """The AutoAugment policy found for this data set, or CIFAR-10's, which transfers."""
    return next((name for name in ("svhn", "imagenet") if data.startswith(name)), "cifar10")


def training_pipeline(
    augment: str, mean: Statistics, std: Statistics, data: str, inputs: InputFormat | None = None
) -> Compose:
    """The pipeline of an augmentation, adapted to the inputs of a pretrained network if there is one."""
    settings = _rand_augment_settings(augment)
    pipeline = AUGMENTATIONS[augment](mean, std, data) if settings is None else _rand_augment(mean, std, settings)
    if inputs is None:
        return pipeline
    if augment not in RESIZING:
        return Compose(*_central_crop(inputs), *pipeline.transforms)
    crop, *rest = pipeline.transforms
    crop = expect_type(crop, RandomResizedCrop)
    return Compose(ConvertChannels(inputs.channels), RandomResizedCrop(inputs.size, crop.scale, crop.ratio), *rest)


def evaluation_pipeline(augment: str, mean: Statistics, std: Statistics, inputs: InputFormat | None = None) -> Compose:
    """The central crop if training has crops of resized images, else the whole image; no randomness."""
    if inputs is not None:
        return Compose(*_central_crop(inputs), Normalize(mean, std))
    return imagenet_evaluation(mean, std) if augment in RESIZING else Compose(Normalize(mean, std))


def _central_crop(inputs: InputFormat) -> tuple[Transform, Transform]:
    return ConvertChannels(inputs.channels), ResizeCenterCrop(inputs.resize, inputs.size)


def default_augmentation(data: DataSet, large: bool, pretrained: bool = False) -> str:
    """The default augmentation of a data set; digits are not mirrored, for example."""
    if large or (data.image_size is None and not pretrained):
        return "imagenet"
    if data.name.startswith("digits"):
        return "none"
    if data.name.startswith("svhn"):
        return "crop"
    return "resized-crop" if pretrained else "crop-flip"
