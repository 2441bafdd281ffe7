"""Images of a trained generator in every batch (Table 5 of the paper): their number, and which generators fit."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch

from isda.lab.data import DataSet
from isda.lab.tasks.classification.settings import ClassificationConfig, ClassificationSettings
from isda.lab.tasks.common.generators import GeneratedImages, TrainedGenerator, load_generator

GENERATED_SHARE = 1 / 6
"""Share of a batch; the paper's, chosen on its validation set."""


def count_per_batch(share: float | None, batch_size: int) -> int:
    """The number of generated images in a batch; at least one is generated, and one is real.

    Example:
        >>> count_per_batch(None, 128)
        21
    """
    share = GENERATED_SHARE if share is None else share
    if not 0 < share < 1:
        raise ValueError(f"generated_share must lie strictly between 0 and 1, got {share}")
    count = round(share * batch_size)
    if not 0 < count < batch_size:
        raise ValueError(f"generated_share must leave both kinds of images in a batch of {batch_size}, got {share}")
    return count


def compatible_generator(folder: Path, data: DataSet, settings: ClassificationSettings) -> TrainedGenerator:
    """The generator of a run, if it has the classes and the image size of a data set.

    Raises:
        ValueError: no such run, other classes or another size of images, or a generator that was trained on images that
            the classifier will be evaluated on.
    """
    trained = load_generator(folder)
    network, size = trained.network, data.image_size
    message = f"generated must be a generator of the classes and images of {data.name}, got {folder}"
    if trained.classes != data.classes:
        raise ValueError(f"{message}, which has {len(trained.classes)} classes of {trained.data}")
    if (network.channels, network.size, network.size) != (data.channels, *(size or ())):
        raise ValueError(f"{message}, whose images are {network.channels}x{network.size}x{network.size}")
    if trained.data_digest == data.digest:
        _check_training_images(trained, settings)
    return trained


def _check_training_images(trained: TrainedGenerator, settings: ClassificationSettings) -> None:
    """A generator must not bring in evaluation images; if it brings in further labels, warn."""
    held_out = settings.held_out or 0
    if held_out not in (0, trained.held_out):
        raise ValueError(
            f"generated must be a generator that was trained with held_out={held_out} as well, this one with "
            f"{trained.held_out}: it was trained on evaluation images"
        )
    if settings.labels is not None and (trained.labels, trained.seed) != (settings.labels, settings.seed or 0):
        images = "all images" if trained.labels is None else f"{trained.labels} images drawn with seed {trained.seed}"
        warnings.warn(
            f"the generator was trained on {images}, the classifier gets {settings.labels} drawn with seed "
            f"{settings.seed or 0}: it profits from more labels than these",
            stacklevel=4,
        )


def generated_images(config: ClassificationConfig, device: torch.device) -> GeneratedImages | None:
    """The generated images of a configuration, on a device; None if it has none.

    Raises:
        ValueError: the generator is not the one that the run was planned with.
    """
    if not config.generated:
        return None
    trained = load_generator(Path(config.generated))
    if trained.sha256 != config.generated_sha256:
        raise ValueError(f"{config.generated} holds another generator than when the run was planned")
    return GeneratedImages(trained.network.to(device), config.generated_per_batch, config.seed)
