"""Images with boxes, masks and names drawn on them."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from isda.data.coco import CocoPart
from isda.files import replacing

__all__ = ["PICTURES", "beside", "class_colour", "drawn", "save"]

PICTURES = 4
"""Kept of a run."""
SHOWN_SCORE = 0.5
"""The least score of what is drawn."""
SMALLEST = 320
"""Pixels of the short side of a picture: names must be legible."""
GOLDEN_ANGLE = 0.381966


def class_colour(label: int) -> tuple[int, int, int]:
    """A colour for a label from 1; neighbours differ.

    Example:
        >>> class_colour(1)
        (242, 48, 48)
    """
    red, green, blue = colorsys.hsv_to_rgb((label - 1) * GOLDEN_ANGLE % 1, 0.8, 0.95)
    return round(255 * red), round(255 * green), round(255 * blue)


def drawn(image: Tensor, found: dict[str, Tensor], classes: Sequence[str], least: float = SHOWN_SCORE) -> Image.Image:
    """An image with what was found in it.

    Args:
        image: uint8 (3, H, W).
        found: boxes (K, 4) and labels (K,), scores (K,) and masks (K, 1, H, W) where there are any.
        classes: names; that of label 1 first.
        least: score of what is drawn.
    """
    scores = found.get("scores", torch.ones(len(found["labels"])))
    shown = (scores >= least).nonzero().flatten().tolist()
    pixels = image.permute(1, 2, 0).numpy().astype(np.float32)
    for number in shown if "masks" in found else ():
        inside = (found["masks"][number].reshape(pixels.shape[:2]) > 0.5).numpy()
        pixels[inside] = 0.5 * pixels[inside] + 0.5 * np.array(class_colour(int(found["labels"][number])))
    factor = max(1.0, SMALLEST / min(pixels.shape[:2]))
    size = (round(pixels.shape[1] * factor), round(pixels.shape[0] * factor))
    picture = Image.fromarray(pixels.round().clip(0, 255).astype(np.uint8)).resize(size)
    brush = ImageDraw.Draw(picture)
    for number in shown:
        label = int(found["labels"][number])
        left, top, right, bottom = (factor * value for value in found["boxes"][number].tolist())
        brush.rectangle((left, top, right, bottom), outline=class_colour(label), width=2)
        told = f"{classes[label - 1]} {float(scores[number]):.2f}" if "scores" in found else classes[label - 1]
        place = brush.textbbox((left + 3, max(0.0, top - 12)), told)
        brush.rectangle(place, fill=class_colour(label))
        brush.text((left + 3, max(0.0, top - 12)), told, fill=(0, 0, 0))
    return picture


def beside(part: CocoPart, position: int, found: dict[str, Tensor], masks: bool, classes: Sequence[str]) -> Image.Image:
    """What is in an image on the left, what was found on the right."""
    image = part.image(position)
    truth, prediction = drawn(image, part.target(position, masks), classes), drawn(image, found, classes)
    both = Image.new("RGB", (truth.width + prediction.width + 4, truth.height), (255, 255, 255))
    both.paste(truth, (0, 0))
    both.paste(prediction, (truth.width + 4, 0))
    return both


def save(picture: Image.Image, path: Path) -> None:
    """Write a PNG, as a whole or not at all."""
    with replacing(path) as unfinished:
        picture.save(unfinished, format="PNG")
