"""Colours of classes, and PNG files."""

from __future__ import annotations

import colorsys
import io
from pathlib import Path
from typing import TYPE_CHECKING

from isda.lab.files import atomic_write

if TYPE_CHECKING:
    from PIL import Image

Colour = tuple[int, int, int]

GOLDEN_RATIO = 0.618033988749895


def distinct_colour(index: int, saturation: float, value: float) -> Colour:
    """A colour for the class of an index: hues of successive classes are a golden section apart.

    Example:
        >>> distinct_colour(0, 0.8, 0.95)
        (242, 48, 48)
    """
    red, green, blue = colorsys.hsv_to_rgb(index * GOLDEN_RATIO % 1, saturation, value)
    return round(255 * red), round(255 * green), round(255 * blue)


def png_bytes(picture: Image.Image) -> bytes:
    """The content of a PNG file."""
    buffer = io.BytesIO()
    picture.save(buffer, format="png", optimize=True)
    return buffer.getvalue()


def save_picture(picture: Image.Image | bytes, path: Path) -> None:
    """Write a picture, or the content of its file, atomically."""
    with atomic_write(path) as unfinished:
        unfinished.write_bytes(picture if isinstance(picture, bytes) else png_bytes(picture))
