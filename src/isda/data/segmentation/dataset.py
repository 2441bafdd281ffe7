"""What `load` returns: pairs of image and label files by part, decoded once where they are few and alike."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from isda.data.image_files import read_image
from isda.data.normalise import PUBLISHED, ChannelStatistics
from isda.data.readers.folder import IN_MEMORY_BYTES
from isda.data.segmentation.pixels import IGNORED, read_labels, size_of

__all__ = ["IGNORED", "PARTS", "Pair", "Part", "SegmentationData"]

PARTS = ("train", "validation", "test")
BYTES_PER_PIXEL = 4  # three colours and a label


class Pair(NamedTuple):
    """An image and the labels of its pixels."""

    image: Path
    labels: Path | None
    """None where they are kept secret, as for the test images of Cityscapes."""


@dataclass(frozen=True, eq=False)
class Part:
    """Images with labels: ``part[i]`` is (uint8 (3, H, W), uint8 (H, W)) with classes 0..C-1 and IGNORED.

    Args:
        pairs: the files.
        table: (256,) from the ids in label files to classes, see `label_table`.
    """

    pairs: tuple[Pair, ...]
    table: Tensor

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if self.decoded is not None:
            return self.decoded[0][index], self.decoded[1][index]
        return self._read(self.pairs[index])

    @property
    def labelled(self) -> bool:
        """Whether there is something to learn from, or to be judged by."""
        return bool(self.pairs) and all(pair.labels is not None for pair in self.pairs)

    @cached_property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        """(height, width) of each image, from the heads of the files.

        Raises:
            ValueError: names an image whose labels have another size.
        """
        return tuple(_size(pair) for pair in self.pairs)

    @cached_property
    def decoded(self) -> tuple[Tensor, Tensor] | None:
        """(N, 3, H, W) images and (N, H, W) labels, if all have one size and take at most 1 GiB; else None."""
        if not self.labelled or len(set(self.sizes)) > 1:
            return None
        height, width = self.sizes[0]
        if len(self) * height * width * BYTES_PER_PIXEL > IN_MEMORY_BYTES:
            return None
        images, labels = zip(*map(self._read, self.pairs), strict=True)
        return torch.stack(images), torch.stack(labels)

    def _read(self, pair: Pair) -> tuple[Tensor, Tensor]:
        image = read_image(pair.image)
        if pair.labels is None:
            return image, torch.full(image.shape[1:], IGNORED, dtype=torch.uint8)
        labels = read_labels(pair.labels, self.table)
        _check_sizes(pair, (image.shape[1], image.shape[2]), (labels.shape[0], labels.shape[1]))
        return image, labels


@dataclass(frozen=True, eq=False, repr=False)
class SegmentationData:
    """Images with a class for every pixel.

    Args:
        name: as it stands in tables.
        train: to learn from.
        validation: to choose settings by.
        test: to be judged by in the end; empty where there is none.
        classes: their names.
        colours: "#rrggbb" of each class, where the data set has its own; else empty.
        source: where the files were found.
    """

    name: str
    train: Part
    validation: Part
    test: Part
    classes: tuple[str, ...]
    colours: tuple[str, ...] = ()
    source: str = ""

    ignore_index = IGNORED

    def __post_init__(self) -> None:
        if not self.train.labelled:
            raise ValueError(f"{self.name} must have training images with labels, got {len(self.train)} images")
        if not 1 <= len(self.classes) <= IGNORED:
            raise ValueError(f"{self.name} must have from 1 to {IGNORED} classes, got {len(self.classes)}")
        if self.colours and len(self.colours) != len(self.classes):
            raise ValueError(
                f"{self.name} must have a colour for each of its {len(self.classes)} classes, got {len(self.colours)}"
            )

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.classes)

    @property
    def statistics(self) -> ChannelStatistics:
        """What pixels are normalised with: ImageNet's figures, which pretrained backbones expect."""
        return PUBLISHED["imagenet"]

    def part(self, name: str) -> Part:
        """One of PARTS by its name."""
        return {"train": self.train, "validation": self.validation, "test": self.test}[name]

    def check(self, parts: Sequence[str]) -> None:
        """Look at all that can be known before training: sizes of every image, ids of those that fit in memory.

        Raises:
            ValueError: names the first file that is wrong.
        """
        for name in parts:
            part = self.part(name)
            part.sizes  # noqa: B018, reads the size of every image
            if part.decoded is None and part.labelled:
                # One of them at least: a wrong kind of label file is wrong everywhere.
                part[0]

    @cached_property
    def digest(self) -> str:
        """A digest of file names, sizes and class names, which tells whether a data set is still the one it was."""
        listed = [
            [[pair.image.name, *size] for pair, size in zip(part.pairs, part.sizes, strict=True)]
            for part in (self.train, self.validation, self.test)
        ]
        return hashlib.sha256(json.dumps([listed, self.classes]).encode()).hexdigest()

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(self.part(name))} {name}" for name in PARTS)
        return f"SegmentationData({self.name!r}, {counts} images, {self.num_classes} classes)"


def _size(pair: Pair) -> tuple[int, int]:
    size = size_of(pair.image)
    if pair.labels is not None:
        _check_sizes(pair, size, size_of(pair.labels))
    return size


def _check_sizes(pair: Pair, image: tuple[int, int], labels: tuple[int, int]) -> None:
    if image != labels:
        (height, width), (label_height, label_width) = image, labels
        raise ValueError(
            f"{pair.labels} must have the size of its image {pair.image.name}, {width}x{height} pixels, got "
            f"{label_width}x{label_height}"
        )
