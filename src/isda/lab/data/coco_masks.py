"""Object masks as polygons and as COCO run lengths (column-major, compressed or not)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

MAX_COORDINATE = 1e7

Segmentation = list[list[float]] | dict[str, Any]


def check_segmentation(segmentation: Any, height: int, width: int) -> str | None:
    """The problem of a segmentation of an image, as the end of a sentence; None if it is valid.

    Example:
        >>> check_segmentation([[70, 70, 90, 70, 90, 90]], 64, 64)
        'lies outside the image of 64x64 pixels'
    """
    if isinstance(segmentation, list):
        return _check_polygons(segmentation, height, width)
    if not isinstance(segmentation, dict):
        return f"must be polygons or run lengths, got {type(segmentation).__name__}"
    if segmentation.get("size") != [height, width]:
        return f"must be of its image, {height}x{width} pixels, got the size {segmentation.get('size')!r}"
    counts = segmentation.get("counts")
    if isinstance(counts, list):
        whole = all(type(count) is int and count >= 0 for count in counts)
        if not whole or sum(counts) != height * width:
            return f"must have run lengths that add up to the {height * width} pixels of its image"
        return None
    if not isinstance(counts, str):
        return f"must have run lengths as counts, got {type(counts).__name__}"
    try:
        run_lengths(segmentation, height, width)
        decode_mask(segmentation, height, width)
    except (ValueError, TypeError, UnicodeError, MemoryError) as error:
        return f"has run lengths that cannot be read: {error}"
    return None


def _check_polygons(polygons: list[Any], height: int, width: int) -> str | None:
    if not polygons:
        return "must have at least one polygon, got none"
    corners = []
    for polygon in polygons:
        # Through numpy: COCO has some hundred million coordinates.
        try:
            points = np.array(polygon, dtype=np.float64)
        except (TypeError, ValueError):
            return "must have polygons of numbers"
        if points.ndim != 1 or len(points) < 6 or len(points) % 2:
            return "must have polygons of at least three points x, y"
        if not np.abs(points).max() < MAX_COORDINATE:
            return "must have polygons of finite numbers"
        corners.append(points.reshape(-1, 2))
    together = np.concatenate(corners)
    (left, top), (right, bottom) = together.min(0), together.max(0)
    if right <= 0 or bottom <= 0 or left >= width or top >= height:
        return f"lies outside the image of {width}x{height} pixels"
    return None


def run_lengths(segmentation: Segmentation, height: int, width: int) -> dict[str, Any]:
    """A segmentation as the compressed run lengths of pycocotools; parts of polygons outside the image are cut off."""
    from pycocotools import mask

    if isinstance(segmentation, list):
        return dict(mask.merge(mask.frPyObjects(segmentation, height, width)))
    if isinstance(segmentation["counts"], list):
        return dict(mask.frPyObjects(segmentation, height, width))
    return {"size": [height, width], "counts": segmentation["counts"].encode("ascii")}


def decode_mask(segmentation: Segmentation, height: int, width: int) -> Tensor:
    """uint8 (height, width): 1 inside the object.

    Example:
        >>> decode_mask([[1, 1, 3, 1, 3, 3, 1, 3]], 4, 5).tolist()
        [[0, 0, 0, 0, 0], [0, 1, 1, 0, 0], [0, 1, 1, 0, 0], [0, 0, 0, 0, 0]]
    """
    from pycocotools import mask

    return torch.from_numpy(np.ascontiguousarray(mask.decode(run_lengths(segmentation, height, width))))


def encode_mask(pixels: Tensor) -> dict[str, Any]:
    """The compressed run lengths of a mask (height, width), as they stand in result files.

    Example:
        >>> mask = torch.eye(3, dtype=torch.uint8)
        >>> torch.equal(decode_mask(encode_mask(mask), 3, 3), mask)
        True
    """
    from pycocotools import mask

    encoded = mask.encode(np.asfortranarray(pixels.cpu().numpy().astype(np.uint8)))
    return {"size": list(encoded["size"]), "counts": encoded["counts"].decode("ascii")}
