"""The backbone of a finished run, and its features on another data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isda.lab.data import DataSet
from isda.lab.data.augment.compose import convert_channels
from isda.lab.data.dataset import Images
from isda.lab.engine.run_folder import RunFolder
from isda.lab.files import file_digest
from isda.lab.tasks.classification.settings import ClassificationConfig
from isda.lab.tasks.classification.trained import TrainedClassifier, fit_size, load_classifier
from isda.lab.tasks.common.data import images_at


@dataclass(frozen=True)
class Source:
    """A trained network and what identifies it. Runs on top of it are named and paired by its method and seed."""

    folder: Path
    trained: TrainedClassifier
    sha256: str

    @property
    def fields(self) -> dict[str, Any]:
        """What a configuration on top of it says of it."""
        config = self.trained.config
        return {
            "network": config.network,
            "network_options": config.network_options,
            "method": config.method,
            "method_options": config.method_options,
            "seed": config.seed,
            "mean": config.mean,
            "std": config.std,
            "channels": config.channels,
            "image_size": config.image_size,
            "source": str(self.folder),
            "source_data": config.data,
            "source_sha256": self.sha256,
        }


def load_source(folder: Path) -> Source:
    """The backbone of a run.

    Raises:
        ValueError: no run, one that is not finished, one of another task, or damaged weights.
    """
    trained = load_classifier(folder)
    return Source(folder.absolute(), trained, file_digest(RunFolder(folder).weights_file))


BATCH = 500


def adapt_images(data: DataSet, config: ClassificationConfig) -> DataSet:
    """A data set whose images have the channels and the size that a backbone was trained on.

    Raises:
        ValueError: images that are decoded on access, for a backbone that was not trained on such images.
    """
    if config.image_size is None:
        return data
    if not isinstance(data.x_train, Tensor) or not isinstance(data.x_test, Tensor):
        raise ValueError(
            f"data must hold images of one size in memory to fine-tune a backbone trained on {config.data}, "
            f"got {data.name}, whose images are decoded on access"
        )
    if (data.channels, data.image_size) == (config.channels, config.image_size):
        return data
    train, test = (
        fit_size(convert_channels(images, config.channels), config.image_size) for images in (data.x_train, data.x_test)
    )
    return replace(data, x_train=train, x_test=test, published=None)


@torch.no_grad()
def extract_features(trained: TrainedClassifier, images: Images, indices: Tensor, device: torch.device) -> Tensor:
    """(N, A) what the classifier of a trained network reads of each image, float64 on the CPU."""
    network, config = trained.network.to(device), trained.config
    rows = []
    for part in indices.split(BATCH):
        taken = images_at(images, part)
        seen = match_input_format(taken, config.channels, config.image_size)
        pixels = trained.pipeline(seen).to(device=device, dtype=config.dtype)
        rows.append(network.features(pixels).double().cpu())
    return torch.cat(rows)


def match_input_format(
    taken: Tensor | Sequence[Tensor], channels: int, image_size: tuple[int, int] | None
) -> Tensor | list[Tensor]:
    """Images with other channels, and of one size where one is given: then they are one tensor (N, C, H, W)."""
    if isinstance(taken, Tensor):
        sized = convert_channels(taken, channels)
        return sized if image_size is None else fit_size(sized, image_size)
    each = [convert_channels(image.unsqueeze(0), channels) for image in taken]
    if image_size is None:
        return [image[0] for image in each]
    return torch.cat([fit_size(image, image_size) for image in each])
