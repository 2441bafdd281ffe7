"""Tiny drawn images whose every pixel has a class, and small runs on them that the tests of segmentation share."""

from __future__ import annotations

import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from isda.lab.data.segmentation import SegmentationData, load
from isda.lab.engine import Processes, RunContext
from isda.lab.tasks.segmentation.settings import SegmentationConfig, SegmentationSettings
from isda.lab.tasks.segmentation.task import Segmentation, SegmentationJob

CLASSES = ("ground", "wall", "ball")
COLOURS = np.array([(30, 160, 60), (200, 190, 60), (220, 40, 40)])
HEIGHT, WIDTH = 26, 34
SMALL: dict[str, Any] = {
    "network": "pspnet-resnet-18",
    "width": 0.125,
    "output_stride": 8,
    "crop": "25x33",
    "batch_size": 4,
    "epochs": 2,
    "lr": 0.05,
}
SMALL_WORDS = [word for name, value in SMALL.items() for word in (f"--{name.replace('_', '-')}", str(value))]
ALONE = Processes(0, 1, torch.device("cpu"))


def scene(number: int, height: int = HEIGHT, width: int = WIDTH) -> tuple[np.ndarray, np.ndarray]:
    """(H, W, 3) a wall behind the ground, a ball before it, and (H, W) its labels; a strip on the left is ignored."""
    chance = np.random.default_rng(number)
    labels = np.zeros((height, width), np.uint8)
    labels[: chance.integers(height // 4, height // 2)] = 1
    rows, columns = np.mgrid[:height, :width]
    centre = chance.integers(height // 4, 3 * height // 4), chance.integers(width // 4, 3 * width // 4)
    labels[(rows - centre[0]) ** 2 + (columns - centre[1]) ** 2 < (height / 5) ** 2] = 2
    image = (COLOURS[labels] + chance.integers(-25, 26, (height, width, 3))).clip(0, 255).astype(np.uint8)
    labels[:, : number % 4] = 255
    return image, labels


def draw(folder: Path, parts: dict[str, int], images: str = "images/{}", labels: str = "labels/{}") -> Path:
    """Write scenes and their palette PNGs: so many per part, in folders called after the part; classes.txt beside."""
    number = 0
    for part, count in parts.items():
        places = [folder / name.format(part) for name in (images, labels)]
        for place in places:
            place.mkdir(parents=True, exist_ok=True)
        for _ in range(count):
            image, ids = scene(number)
            Image.fromarray(image).save(places[0] / f"scene-{number:03d}.png")
            picture = Image.fromarray(ids)
            # All 256 colours: with fewer, a file has fewer bits per pixel, too few for the id 255.
            picture.putpalette([*COLOURS.flatten().tolist(), *[0] * 759])
            picture.save(places[1] / f"scene-{number:03d}.png")
            number += 1
    (folder / "classes.txt").write_text("\n".join(CLASSES) + "\n")
    return folder


@lru_cache(maxsize=1)
def drawn() -> SegmentationData:
    """Eleven scenes to learn from, five for validation and three for testing."""
    folder = Path(tempfile.mkdtemp(prefix="isda-scenes-"))
    return load(draw(folder / "scenes", {"train": 11, "val": 5, "test": 3}))


def small_config(data: SegmentationData | None = None, **changes: Any) -> SegmentationConfig:
    """The configuration of the small run, with other settings where they are given."""
    return Segmentation().resolve(SegmentationSettings(**(SMALL | changes)), data or drawn())


def small_job(data: SegmentationData | None = None, **changes: Any) -> SegmentationJob:
    """The small run, before its first step."""
    data = data or drawn()
    job = Segmentation().start(small_config(data, **changes), data, RunContext(ALONE, Path("not-there")))
    assert isinstance(job, SegmentationJob)
    return job
