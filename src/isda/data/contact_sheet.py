"""A picture of a data set: one row of training images per class, with its name."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from isda.data.dataset import DataSet
from isda.files import replacing

__all__ = ["contact_sheet", "write_contact_sheet"]

COLUMNS = 12
MOST_ROWS = 100
GAP = 2
SMALLEST_CELL, LARGEST_CELL = 32, 64


def contact_sheet(data: DataSet, columns: int = COLUMNS) -> tuple[Tensor, list[str]]:
    """The first `columns` training images of each class as one uint8 image (3, H, W), and the name of each row.

    Of more than 100 classes, 100 evenly spaced ones are shown.
    """
    step = max(1, data.num_classes / MOST_ROWS)
    shown = [int(i * step) for i in range(min(data.num_classes, MOST_ROWS))]
    rows = []
    for label in shown:
        members = (data.y_train == label).nonzero().flatten()[:columns].tolist()
        cells = [_cell(data.x_train[i]) for i in members]
        rows.append(cells)
    # Images of a folder may differ in size.
    height, width = (max(cell.shape[side] for row in rows for cell in row) for side in (1, 2))
    sheet = torch.full((3, len(rows) * (height + GAP) + GAP, columns * (width + GAP) + GAP), 255, dtype=torch.uint8)
    for i, row in enumerate(rows):
        for j, cell in enumerate(row):
            top, left = GAP + i * (height + GAP), GAP + j * (width + GAP)
            sheet[:, top : top + cell.shape[1], left : left + cell.shape[2]] = cell
    return sheet, [data.classes[label] for label in shown]


def write_contact_sheet(data: DataSet, path: Path) -> None:
    """Draw the contact sheet with class names into an image file."""
    from matplotlib.figure import Figure

    sheet, names = contact_sheet(data)
    _, height, width = sheet.shape
    dpi = 100
    figure = Figure(figsize=(width / dpi, height / dpi), dpi=dpi)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.imshow(sheet.permute(1, 2, 0).numpy(), interpolation="nearest", aspect="auto")
    row = (height - GAP) / len(names)
    axes.set_yticks([GAP / 2 + row * (i + 0.5) for i in range(len(names))], labels=names, fontsize=9, parse_math=False)
    axes.set_xticks([])
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_title(
        f"{data.name}: {len(data.y_train):,} training images, {data.num_classes} classes", fontsize=10, parse_math=False
    )
    with replacing(path) as unfinished:
        figure.savefig(unfinished, format=path.suffix[1:] or "png", bbox_inches="tight", pad_inches=0.1)


def _cell(image: Tensor) -> Tensor:
    """One image as RGB: small ones enlarged by a whole factor, large ones cropped to a square and reduced."""
    if image.shape[0] not in (1, 3):
        image = image[:3] if image.shape[0] > 3 else image[:1]
    image = image.expand(3, -1, -1)
    height, width = image.shape[1:]
    longest = max(height, width)
    if longest <= LARGEST_CELL:
        factor = max(1, round(SMALLEST_CELL / longest))
        return image.repeat_interleave(factor, 1).repeat_interleave(factor, 2)
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = image[None, :, top : top + side, left : left + side].float()
    small = F.interpolate(square, (LARGEST_CELL, LARGEST_CELL), mode="bilinear", antialias=True)
    return small[0].round().clamp(0, 255).to(torch.uint8)
