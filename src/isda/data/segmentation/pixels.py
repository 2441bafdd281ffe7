"""One image and its labels from their files: what may stand in a label file, and how it is decoded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from isda.data.image_files import open_image

__all__ = ["FORBIDDEN", "IGNORED", "LABEL_MODES", "label_table", "read_ids", "read_labels", "size_of"]

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


def size_of(path: Path) -> tuple[int, int]:
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
