"""Images made small enough for a page: those of small data sets as they are, larger ones as squares of one size."""

from __future__ import annotations

import io
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["as_file", "strip", "thumbnail"]

LARGEST = 64
"""Pixels of a side up to which an image is shown as it is."""
SIDE = 112
"""Of what is made of larger ones, twice the size at which pages show it."""
GAP = 2


def thumbnail(image: Tensor) -> Tensor:
    """An image of any size and number of channels as colours: uint8 (3, H, W).

    Args:
        image: uint8 (C, H, W); of channels that are neither grey nor colour the first are shown.

    Example:
        >>> thumbnail(torch.zeros(1, 8, 8, dtype=torch.uint8)).shape
        torch.Size([3, 8, 8])
        >>> thumbnail(torch.zeros(3, 375, 500, dtype=torch.uint8)).shape
        torch.Size([3, 112, 112])
    """
    image = image.cpu()
    image = (image[:3] if image.shape[0] >= 3 else image[:1]).expand(3, -1, -1)
    height, width = image.shape[1:]
    if max(height, width) <= LARGEST:
        return image
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = image[None, :, top : top + side, left : left + side].float()
    small = F.interpolate(square, (SIDE, SIDE), mode="bilinear", antialias=True)
    return small[0].round().clamp(0, 255).to(torch.uint8)


def strip(images: Sequence[Tensor] | Tensor, columns: int) -> Tensor:
    """Images beside each other in rows of ``columns``: uint8 (4, H, W), where nothing is there transparent."""
    cells = [thumbnail(image) for image in images]
    # Images of a folder may differ in size.
    height, width = (max(cell.shape[side] for cell in cells) for side in (1, 2))
    rows = -(-len(cells) // columns)
    sheet = torch.zeros(4, rows * (height + GAP) - GAP, columns * (width + GAP) - GAP, dtype=torch.uint8)
    for number, cell in enumerate(cells):
        top, left = (number // columns) * (height + GAP), (number % columns) * (width + GAP)
        sheet[:3, top : top + cell.shape[1], left : left + cell.shape[2]] = cell
        sheet[3, top : top + cell.shape[1], left : left + cell.shape[2]] = 255
    return sheet


def as_file(image: Tensor) -> bytes:
    """A uint8 image (3, H, W) or (4, H, W) as a PNG file; of photographs, which are larger, as a WebP file.

    Example:
        >>> as_file(torch.zeros(3, 8, 8, dtype=torch.uint8))[1:4]
        b'PNG'
    """
    from PIL import Image

    written = io.BytesIO()
    photographs = image.shape[1] > LARGEST and image.shape[2] > LARGEST
    drawn = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
    if photographs:
        drawn.save(written, "webp", quality=85)
    else:
        drawn.save(written, "png", optimize=True)
    return written.getvalue()
