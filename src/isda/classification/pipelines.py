"""Augmentation by name: from a data set's images to what the network sees, in training and in evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from isda.data import DataSet
from isda.data.augment import (
    AutoAugment,
    Compose,
    Cutout,
    Normalize,
    RandAugment,
    RandomCrop,
    RandomTranslation,
    crop_flip,
    imagenet_evaluation,
    imagenet_training,
    translate_flip,
)

__all__ = ["AUGMENTATIONS", "default_augmentation", "evaluation_pipeline", "training_pipeline"]

Statistics = Sequence[float]


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
}
"""Name -> the training pipeline for pixel statistics and the name of a data set."""


def _policy(data: str) -> str:
    """The AutoAugment policy found for this data set, or CIFAR-10's, which transfers."""
    return next((name for name in ("svhn", "imagenet") if data.startswith(name)), "cifar10")


def training_pipeline(augment: str, mean: Statistics, std: Statistics, data: str) -> Compose:
    """The pipeline of one of AUGMENTATIONS."""
    return AUGMENTATIONS[augment](mean, std, data)


def evaluation_pipeline(augment: str, mean: Statistics, std: Statistics) -> Compose:
    """No randomness: the central crop for networks trained with "imagenet", the image as it is for all others."""
    return imagenet_evaluation(mean, std) if augment == "imagenet" else Compose(Normalize(mean, std))


def default_augmentation(data: DataSet, large: bool) -> str:
    """What a data set is augmented with unless the user says: nothing that would change what a digit means."""
    if large or data.image_size is None:
        return "imagenet"
    if data.name.startswith("digits"):
        return "none"
    return "crop" if data.name.startswith("svhn") else "crop-flip"
