"""Pictures of inverted features: grids of images with a heading over every column and a name before every row."""

from __future__ import annotations

import io
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["grid_png"]

GAP, WIDER = 2, 24
"""Pixels between two cells, and between two groups of columns."""
CELL = 64
"""Small images are enlarged by a whole factor to about this side."""
DPI = 100


def grid_png(groups: Sequence[tuple[str, Tensor]], names: Sequence[str]) -> bytes:
    """A PNG with a row for each image and its columns in groups.

    Args:
        groups: a heading, and uint8 images (rows, columns, C, H, W) of one channel or three.
        names: of the rows.

    Example:
        >>> grid_png([("original", torch.zeros(2, 1, 1, 8, 8, dtype=torch.uint8))], ["a", "b"])[1:4]
        b'PNG'
    """
    from matplotlib.figure import Figure

    parts, places, left = [], [], 0
    for number, (_, images) in enumerate(groups):
        part = _tiled(images)
        if number:
            parts.append(torch.full((3, part.shape[1], WIDER), 255, dtype=torch.uint8))
            left += WIDER
        places.append(left + part.shape[2] / 2)
        parts.append(part)
        left += part.shape[2]
    sheet = torch.cat(parts, 2)
    _, height, width = sheet.shape
    figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.imshow(sheet.permute(1, 2, 0).numpy(), interpolation="nearest", aspect="auto")
    row = height / len(names)
    axes.set_yticks([row * (i + 0.5) for i in range(len(names))], labels=list(names), fontsize=8, parse_math=False)
    axes.xaxis.tick_top()
    axes.set_xticks(places, labels=[heading for heading, _ in groups], fontsize=8, parse_math=False)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    written = io.BytesIO()
    figure.savefig(written, format="png", bbox_inches="tight", pad_inches=0.1, metadata={"Software": None})
    return written.getvalue()


def _tiled(images: Tensor) -> Tensor:
    """(3, H, W) the cells (rows, columns, C, H, W) beside and below one another."""
    if images.shape[2] not in (1, 3):
        images = images[:, :, :1]
    factor = max(1, round(CELL / images.shape[-1]))
    cells = images.expand(-1, -1, 3, -1, -1).repeat_interleave(factor, 3).repeat_interleave(factor, 4)
    framed = torch.nn.functional.pad(cells, (0, GAP, 0, GAP), value=255)
    return framed.permute(2, 0, 3, 1, 4).flatten(3, 4).flatten(1, 2)
