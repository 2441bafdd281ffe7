"""What a network sees in an image, as a picture: image, truth and prediction side by side, and a legend below."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from isda.segmentation.colours import Colour, palette

if TYPE_CHECKING:
    from PIL import Image, ImageFont

__all__ = ["label_picture", "overlay"]

SMALLEST, LARGEST = 200, 480
"""Widths of a panel: smaller images are enlarged, larger ones reduced."""
GAP, LINE, TEXT = 8, 20, 13
SHARE = 0.6
"""Of a class's colour in a panel; the rest is the image."""


def overlay(
    image: Tensor,
    truth: Tensor | None,
    prediction: Tensor,
    classes: Sequence[str],
    *,
    ignore_index: int = 255,
    colours: Sequence[Colour] | None = None,
) -> bytes:
    r"""Image, truth and prediction side by side as PNG, with a legend of the classes that occur.

    Args:
        image: (3, H, W) in uint8.
        truth: (H, W) class indices; pixels of ``ignore_index`` are left dark. None where it is not known.
        prediction: (H, W) class indices.
        classes: the names of the C classes.
        ignore_index: label of pixels without class.
        colours: of the classes; by default `isda.segmentation.colours.palette`.

    Raises:
        ValueError: shapes that do not fit, or a label that is no class.

    Example:
        >>> labels = torch.tensor([[0, 1]])
        >>> overlay(torch.zeros(3, 1, 2, dtype=torch.uint8), labels, labels, ["road", "sky"])[:4]
        b'\x89PNG'
    """
    from PIL import Image, ImageDraw

    if image.ndim != 3 or image.shape[0] != 3 or image.dtype != torch.uint8:
        raise ValueError(f"image must be uint8 of shape (3, H, W), got {image.dtype} of {tuple(image.shape)}")
    chosen = _colours(classes, colours)
    size = _panel_size(*image.shape[1:])
    # Where panels are reduced, each of their pixels is a mean of the image's; labels have no mean.
    way = Image.Resampling.NEAREST if size[0] >= image.shape[2] else Image.Resampling.BOX
    pixels = np.array(Image.fromarray(image.permute(1, 2, 0).cpu().numpy()).resize(size, way))
    panels = {"image": pixels}
    occurring: set[int] = set()
    for name, labels in (("truth", truth), ("prediction", prediction)):
        if labels is not None:
            indices = _nearest(_checked(name, labels, image, len(classes), ignore_index), size)
            occurring |= set(np.unique(indices).tolist())
            shown = _coloured(indices, chosen, ignore_index)
            panels[name] = (SHARE * shown + (1 - SHARE) * pixels).round().astype(np.uint8)
    font = _font()
    width = len(panels) * size[0] + (len(panels) + 1) * GAP
    legend = _legend_rows([(index, classes[index]) for index in sorted(occurring - {ignore_index})], width, font)
    sheet = Image.new("RGB", (width, size[1] + LINE * (1 + len(legend)) + 2 * GAP), "white")
    draw = ImageDraw.Draw(sheet)
    for position, (name, panel) in enumerate(panels.items()):
        left = GAP + position * (size[0] + GAP)
        draw.text((left, 3), name, fill="black", font=font)
        sheet.paste(Image.fromarray(panel), (left, LINE))
    for row, entries in enumerate(legend):
        top = LINE + size[1] + GAP + row * LINE
        for left, index, name in entries:
            draw.rectangle((left, top + 3, left + 14, top + 15), fill=chosen[index], outline="black")
            draw.text((left + 20, top + 1), name, fill="black", font=font)
    return _png(sheet)


def label_picture(labels: Tensor, classes: Sequence[str], *, colours: Sequence[Colour] | None = None) -> bytes:
    r"""Class indices (H, W) as an indexed PNG: its pixels are the indices, its palette the colours of the classes.

    Example:
        >>> label_picture(torch.tensor([[0, 1]]), ["road", "sky"])[:4]
        b'\x89PNG'
    """
    from PIL import Image

    if labels.ndim != 2 or len(classes) > 256:
        told = f"got {tuple(labels.shape)} and {len(classes)}"
        raise ValueError(f"labels must have shape (H, W), of at most 256 classes, {told}")
    picture = Image.fromarray(labels.cpu().numpy().astype(np.uint8))
    picture.putpalette([part for colour in _colours(classes, colours) for part in colour])
    return _png(picture)


def _colours(classes: Sequence[str], colours: Sequence[Colour] | None) -> Sequence[Colour]:
    chosen = palette(classes) if colours is None else colours
    if len(chosen) != len(classes):
        raise ValueError(f"colours must be {len(classes)}, one per class, got {len(chosen)}")
    return chosen


def _checked(name: str, labels: Tensor, image: Tensor, classes: int, ignore_index: int) -> np.ndarray:
    if labels.shape != image.shape[1:]:
        raise ValueError(f"{name} must have the image's shape {tuple(image.shape[1:])}, got {tuple(labels.shape)}")
    indices: np.ndarray = labels.cpu().numpy()
    wrong = indices[((indices < 0) | (indices >= classes)) & (indices != ignore_index)]
    if wrong.size:
        raise ValueError(f"{name} must be classes 0..{classes - 1} or {ignore_index}, got {wrong[0]}")
    return indices


def _coloured(indices: np.ndarray, colours: Sequence[Colour], ignore_index: int) -> np.ndarray:
    table = np.array([*colours, (0, 0, 0)], dtype=np.uint8)
    return table[np.where(indices == ignore_index, len(colours), indices)]


def _panel_size(height: int, width: int) -> tuple[int, int]:
    """Width and height of a panel: whole multiples of small images, so that their pixels stay square."""
    if width < SMALLEST:
        factor = -(-SMALLEST // width)
        return width * factor, height * factor
    shown = min(width, LARGEST)
    return shown, max(1, round(height * shown / width))


def _nearest(indices: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    height, width = indices.shape
    rows, columns = np.arange(size[1]) * height // size[1], np.arange(size[0]) * width // size[0]
    return indices[rows][:, columns]


def _font() -> ImageFont.FreeTypeFont:
    """Matplotlib brings a font with the letters of most languages."""
    from matplotlib import get_data_path
    from PIL import ImageFont

    return ImageFont.truetype(str(Path(get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"), TEXT)


def _legend_rows(
    entries: Sequence[tuple[int, str]], width: int, font: ImageFont.FreeTypeFont
) -> list[list[tuple[int, int, str]]]:
    """Rows of (left, class, name) that fit the width; a longer name is cut off by the edge of the picture."""
    rows: list[list[tuple[int, int, str]]] = []
    left = width
    for index, name in entries:
        needed = 20 + int(font.getlength(name)) + 16
        if not rows or left + needed > width:
            rows.append([])
            left = GAP
        rows[-1].append((left, index, name))
        left += needed
    return rows


def _png(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, format="png", optimize=True)
    return buffer.getvalue()
