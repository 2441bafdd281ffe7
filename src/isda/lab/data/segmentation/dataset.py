"""`SegmentationData`: image and label files by part, decoded in advance if they fit into memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from isda.lab.data.image_files import open_image, read_image
from isda.lab.data.normalise import PUBLISHED_STATISTICS, ChannelStatistics
from isda.lab.data.readers.folder import IN_MEMORY_BYTES

IGNORED = 255
"""The label of ignored pixels in batches; files may use another id."""
FORBIDDEN = -1
LABEL_MODES = ("L", "P", "1")


def label_table(classes: Mapping[int, int]) -> Tensor:
    """(256,) int16 classes by the id in a label file, from a mapping of ids to classes or IGNORED.

    255 is always IGNORED; ids that are not in the mapping are FORBIDDEN.

    Example:
        >>> label_table({0: 0, 1: 1, 2: IGNORED})[[0, 1, 2, 3, 255]].tolist()
        [0, 1, 255, -1, 255]
    """
    table = torch.full((256,), FORBIDDEN, dtype=torch.int16)
    table[IGNORED] = IGNORED
    for identifier, label in classes.items():
        table[identifier] = label
    return table


def image_size(path: Path) -> tuple[int, int]:
    """(height, width) of an image, without decoding it."""
    with open_image(path) as image:
        width, height = image.size
    return height, width


def read_ids(path: Path) -> Tensor:
    """uint8 (H, W) values of a grey or palette PNG.

    Raises:
        ValueError: another kind of image, or one that cannot be decoded.
    """
    with open_image(path) as image:
        if image.mode not in LABEL_MODES:
            raise ValueError(
                f"{path} must hold class ids, one number per pixel (a grey or palette PNG), got pixels of mode "
                f"{image.mode}"
            )
        try:
            return torch.from_numpy(np.array(image).astype(np.uint8))
        except (OSError, SyntaxError, ValueError) as error:
            raise ValueError(f"{path} cannot be read as an image: {error}") from error


def read_labels(path: Path, table: Tensor) -> Tensor:
    """uint8 (H, W) classes and IGNORED of a label file, see `label_table`.

    Raises:
        ValueError: names the file and the first forbidden id with its position.
    """
    ids = read_ids(path)
    labels = table[ids.long()]
    if bool((labels == FORBIDDEN).any()):
        row, column = (labels == FORBIDDEN).nonzero()[0].tolist()
        known = [i for i in range(IGNORED) if table[i] != FORBIDDEN]
        raise ValueError(
            f"{path} holds the label id {int(ids[row, column])} at row {row}, column {column}; ids must be "
            f"{_ranges(known)}, or {IGNORED} for ignored pixels"
        )
    return labels.to(torch.uint8)


def _ranges(numbers: list[int]) -> str:
    """Format numbers as "0..11" or "0..3, 7"."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}..{part[-1]}" for part in parts)


PARTS = ("train", "validation", "test")
BYTES_PER_PIXEL = 4  # three colours and a label


class SegmentationPair(NamedTuple):
    """An image and the labels of its pixels."""

    image: Path
    labels: Path | None
    """None if they are not public, as for the test images of Cityscapes."""


@dataclass(frozen=True, eq=False)
class SegmentationPart:
    """Images with labels: ``part[i]`` is (uint8 (3, H, W), uint8 (H, W)) with classes 0..C-1 and IGNORED.

    Args:
        pairs: the files.
        table: (256,) from the ids in label files to classes, see `label_table`.
    """

    pairs: tuple[SegmentationPair, ...]
    table: Tensor

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if self.decoded is not None:
            return self.decoded[0][index], self.decoded[1][index]
        return self._read(self.pairs[index])

    @property
    def labelled(self) -> bool:
        """Whether there are images and all have labels."""
        return bool(self.pairs) and all(pair.labels is not None for pair in self.pairs)

    @cached_property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        """(height, width) of each image, from the headers of the files.

        Raises:
            ValueError: names an image whose labels have another size.
        """
        sizes = tuple(image_size(pair.image) for pair in self.pairs)
        for pair, size in zip(self.pairs, sizes, strict=True):
            if pair.labels is not None:
                _check_sizes(pair, size, image_size(pair.labels))
        return sizes

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

    def _read(self, pair: SegmentationPair) -> tuple[Tensor, Tensor]:
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
        name: for tables.
        train: training images.
        validation: images for the choice of settings.
        test: test images, possibly none.
        classes: names of the classes.
        colours: "#rrggbb" of each class, or empty.
        source: the folder.
    """

    name: str
    train: SegmentationPart
    validation: SegmentationPart
    test: SegmentationPart
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
        """Statistics for normalisation: those of ImageNet, which pretrained backbones expect."""
        return PUBLISHED_STATISTICS["imagenet"]

    def part(self, name: str) -> SegmentationPart:
        """One of PARTS by its name."""
        return {"train": self.train, "validation": self.validation, "test": self.test}[name]

    def check(self, parts: Sequence[str]) -> None:
        """Check the sizes of all images, and the ids of those that fit in memory, before training.

        Raises:
            ValueError: names the first file that is wrong.
        """
        for name in parts:
            part = self.part(name)
            part.sizes  # noqa: B018, reads the size of every image
            if part.decoded is None and part.labelled:
                part[0]  # decodes one image: a wrong kind of label file is wrong everywhere

    @cached_property
    def digest(self) -> str:
        """A digest of file names, sizes and class names, by which runs notice that a data set has changed."""
        listed = [
            [[pair.image.name, *size] for pair, size in zip(part.pairs, part.sizes, strict=True)]
            for part in (self.train, self.validation, self.test)
        ]
        return hashlib.sha256(json.dumps([listed, self.classes]).encode()).hexdigest()

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(self.part(name))} {name}" for name in PARTS)
        return f"SegmentationData({self.name!r}, {counts} images, {self.num_classes} classes)"


def _check_sizes(pair: SegmentationPair, image: tuple[int, int], labels: tuple[int, int]) -> None:
    if image != labels:
        (height, width), (label_height, label_width) = image, labels
        raise ValueError(
            f"{pair.labels} must have the size of its image {pair.image.name}, {width}x{height} pixels, got "
            f"{label_width}x{label_height}"
        )
