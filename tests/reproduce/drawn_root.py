"""A folder of drawn data sets under the names of those that the paper uses and that no dependency ships."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

import segmentation_runs
import shapes

WORDNET_IDS = ("n01440764", "n01443537", "n01484850", "n01491361", "n01494475", "n01496331")
"""Six, so that there is a top-5 error."""


def draw_root(folder: Path) -> Path:
    """Draw imagenet, cityscapes and coco; returns the folder."""
    chance = np.random.default_rng(0)
    for part, count in (("train", 4), ("val", 2)):
        for label, name in enumerate(WORDNET_IDS):
            place = folder / "imagenet" / part / name
            place.mkdir(parents=True)
            for number in range(count):
                pixels = chance.integers(0, 60, (40, 48, 3)) + 30 * label
                Image.fromarray(pixels.astype(np.uint8)).save(place / f"{name}_{number}.JPEG")
    segmentation_runs.draw(folder / "cityscapes", {"train": 8, "val": 3, "test": 2})
    shapes.draw_set(folder / "coco", 8, 4, size=64, most=3, largest=40)
    return folder
