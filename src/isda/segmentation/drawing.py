"""Pictures of what a network makes of images: files for the run folder and for `isda segment predict`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor, nn

from isda.classification.batches import ready
from isda.data.augment import Normalize
from isda.data.segmentation import IGNORED, Part
from isda.files import replacing
from isda.segmentation.colours import Colour
from isda.segmentation.config import Config
from isda.segmentation.inference import probabilities
from isda.segmentation.pictures import overlay

__all__ = ["colours_of", "draw", "prepared"]


def draw(network: nn.Module, part: Part, indices: Sequence[int], config: Config, folder: Path) -> None:
    """Image, truth and prediction of each image side by side, as PNG files named by number and image."""
    for number, index in enumerate(indices):
        image, labels = part[index]
        predicted = probabilities(network, prepared(image, network, config)).argmax(0)
        name = f"{number + 1}-{part.pairs[index].image.stem}.png"
        with replacing(folder / name) as unfinished:
            unfinished.write_bytes(
                overlay(
                    image,
                    labels,
                    predicted.cpu(),
                    config.classes,
                    ignore_index=IGNORED,
                    colours=colours_of(config),
                )
            )


def prepared(image: Tensor, network: nn.Module, config: Config) -> Tensor:
    """A uint8 image (3, H, W) as the network takes one, on its device."""
    trained = next(network.parameters())
    pixels = Normalize(config.mean, config.std)(image.unsqueeze(0)).to(trained.device)
    return ready(pixels, trained.dtype, config.channels_last).squeeze(0)


def colours_of(config: Config) -> list[Colour] | None:
    """The data set's own colours, if it has any.

    Example:
        >>> from types import SimpleNamespace
        >>> colours_of(SimpleNamespace(colours=("#ff0080",)))
        [(255, 0, 128)]
    """
    numbers = [int(colour.removeprefix("#"), 16) for colour in config.colours]
    return [(number >> 16, number >> 8 & 255, number & 255) for number in numbers] or None
