"""Images of drawn shapes in COCO's format: overlapping squares, discs, triangles and stars, with their masks."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

KINDS = ("square", "disc", "triangle", "star")
# Categories need not count from 1, or without gaps.
CATEGORY_IDS = (3, 7, 8, 20)


def polygon(kind: str, left: float, top: float, side: float, draw: random.Random) -> list[tuple[float, float]]:
    """The corners of a shape that fills a square of that side."""
    x, y, half = left + side / 2, top + side / 2, side / 2
    if kind == "square":
        return [(left, top), (left + side, top), (left + side, top + side), (left, top + side)]
    if kind == "disc":
        return [(x + half * math.cos(t * math.pi / 12), y + half * math.sin(t * math.pi / 12)) for t in range(24)]
    if kind == "triangle":
        return [(x, top), (left + side, top + side), (left, top + side)]
    points = []
    for number in range(10):
        radius = half if number % 2 == 0 else 0.4 * half
        angle = number * math.pi / 5 - math.pi / 2
        points.append((x + radius * math.cos(angle), y + radius * math.sin(angle)))
    return points


def draw_set(
    folder: Path, train: int, validation: int, *, size: int = 160, seed: int = 0, most: int = 6, largest: int = 96
) -> Path:
    """A folder with train.json, val.json and images of 1 to `most` shapes of 16 to `largest` pixels; returns it."""
    for part, count in (("train", train), ("val", validation)):
        draw = random.Random(f"{part} {seed}")
        (folder / part).mkdir(parents=True, exist_ok=True)
        images: list[dict[str, Any]] = []
        annotations: list[dict[str, Any]] = []
        for number in range(1, count + 1):
            pixels, objects = picture(draw, size, most, largest)
            name = f"{number:04d}.png"
            Image.fromarray(pixels).save(folder / part / name)
            images.append({"id": number, "file_name": name, "height": size, "width": size})
            for one in objects:
                annotations.append({"id": len(annotations) + 1, "image_id": number, "iscrowd": 0} | one)
        categories = [{"id": id, "name": name} for id, name in zip(CATEGORY_IDS, KINDS, strict=True)]
        content = {"images": images, "annotations": annotations, "categories": categories}
        (folder / f"{part}.json").write_text(json.dumps(content))
    return folder


def picture(draw: random.Random, size: int, most: int, largest: int) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """One image (size, size, 3) and the annotations of what is in it; later shapes cover earlier ones."""
    noise = np.random.default_rng(draw.getrandbits(32)).integers(90, 140, (size, size, 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    brush = ImageDraw.Draw(image)
    objects = []
    covered = Image.new("L", (size, size))
    for _ in range(draw.randint(1, most)):
        # Not nearly all of an earlier one may vanish.
        for _ in range(20):
            side = draw.uniform(16, min(largest, size - 2))
            left, top = draw.uniform(0, size - side), draw.uniform(0, size - side)
            around = np.asarray(covered)[int(top) : int(top + side), int(left) : int(left + side)]
            if around.mean() < 0.35 * 255:
                break
        else:
            continue
        kind = draw.randrange(len(KINDS))
        points = polygon(KINDS[kind], left, top, side, draw)
        colour = tuple(draw.choice([draw.randint(0, 60), draw.randint(190, 255)]) for _ in range(3))
        brush.polygon(points, fill=colour)
        ImageDraw.Draw(covered).polygon(points, fill=255)
        xs, ys = [x for x, _ in points], [y for _, y in points]
        box = [min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys)]
        shoelace = sum(x1 * y2 - x2 * y1 for (x1, y1), (x2, y2) in zip(points, points[1:] + points[:1], strict=True))
        objects.append(
            {
                "category_id": CATEGORY_IDS[kind],
                "bbox": [round(value, 2) for value in box],
                "area": abs(shoelace) / 2,
                "segmentation": [[round(value, 2) for point in points for value in point]],
            }
        )
    return np.asarray(image), objects
