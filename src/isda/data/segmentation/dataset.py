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

from isda.data.image_files import open_image, read_image
from isda.data.normalise import PUBLISHED_STATISTICS, ChannelStatistics
from isda.data.readers.folder import IN_MEMORY_BYTES

IGNORED = 255
"""The label of pixels that do not count, as it stands in batches; a file may call them otherwise."""
FORBIDDEN = -1
LABEL_MODES = ("L", "P", "1")


def label_table(classes: Mapping[int, int]) -> Tensor:
    """(256,) int16: for each id that a label file may hold its class; FORBIDDEN elsewhere. 255 is always IGNORED.

    Args:
        classes: id -> class, or IGNORED.

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
    """uint8 (H, W) the numbers that stand in a grey or palette PNG.

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
    """uint8 (H, W) classes, IGNORED where a pixel does not count.

    Args:
        path: of the label file.
        table: see `label_table`.

    Raises:
        ValueError: names the file, the first id that it must not hold, and where.
    """
    ids = read_ids(path)
    # int64 takes the fast way through a table of 256.
    labels = table[ids.long()]
    if bool((labels == FORBIDDEN).any()):
        row, column = (labels == FORBIDDEN).nonzero()[0].tolist()
        known = [i for i in range(IGNORED) if table[i] != FORBIDDEN]
        raise ValueError(
            f"{path} holds the label id {int(ids[row, column])} at row {row}, column {column}; ids must be "
            f"{_ranges(known)}, or {IGNORED} for pixels that do not count"
        )
    return labels.to(torch.uint8)


def _ranges(numbers: list[int]) -> str:
    """Numbers in words: "0..11", "0..3, 7"."""
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
    """None where they are kept secret, as for the test images of Cityscapes."""


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
        name: as it stands in tables.
        train: to learn from.
        validation: to choose settings by.
        test: to be judged by in the end; empty where there is none.
        classes: their names.
        colours: "#rrggbb" of each class, where the data set has its own; else empty.
        source: where the files were found.
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
        """What pixels are normalised with: ImageNet's figures, which pretrained backbones expect."""
        return PUBLISHED_STATISTICS["imagenet"]

    def part(self, name: str) -> SegmentationPart:
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


def _size(pair: SegmentationPair) -> tuple[int, int]:
    size = image_size(pair.image)
    if pair.labels is not None:
        _check_sizes(pair, size, image_size(pair.labels))
    return size


def _check_sizes(pair: SegmentationPair, image: tuple[int, int], labels: tuple[int, int]) -> None:
    if image != labels:
        (height, width), (label_height, label_width) = image, labels
        raise ValueError(
            f"{pair.labels} must have the size of its image {pair.image.name}, {width}x{height} pixels, got "
            f"{label_width}x{label_height}"
        )
