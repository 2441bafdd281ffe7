"""A colour for each class: those that Cityscapes and CamVid are known by, and others that are told apart."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence

__all__ = ["CAMVID", "CITYSCAPES", "Colour", "palette"]

Colour = tuple[int, int, int]

CITYSCAPES: dict[str, Colour] = {
    "road": (128, 64, 128),
    "sidewalk": (244, 35, 232),
    "building": (70, 70, 70),
    "wall": (102, 102, 156),
    "fence": (190, 153, 153),
    "pole": (153, 153, 153),
    "traffic light": (250, 170, 30),
    "traffic sign": (220, 220, 0),
    "vegetation": (107, 142, 35),
    "terrain": (152, 251, 152),
    "sky": (70, 130, 180),
    "person": (220, 20, 60),
    "rider": (255, 0, 0),
    "car": (0, 0, 142),
    "truck": (0, 0, 70),
    "bus": (0, 60, 100),
    "train": (0, 80, 100),
    "motorcycle": (0, 0, 230),
    "bicycle": (119, 11, 32),
}
"""The 19 classes that Cityscapes evaluates, in the order of its train ids."""

CAMVID: dict[str, Colour] = {
    "sky": (128, 128, 128),
    "building": (128, 0, 0),
    "pole": (192, 192, 128),
    "road": (128, 64, 128),
    "pavement": (60, 40, 222),
    "tree": (128, 128, 0),
    "sign symbol": (192, 128, 128),
    "fence": (64, 64, 128),
    "car": (64, 0, 128),
    "pedestrian": (64, 64, 0),
    "bicyclist": (0, 128, 192),
}
"""The 11 classes that CamVid is usually reduced to."""

GOLDEN = 0.618033988749895
SHADES = ((0.7, 0.75), (0.45, 0.95), (0.95, 0.5))


def palette(classes: Sequence[str]) -> list[Colour]:
    """A colour for each class.

    Where all names are Cityscapes' or all are CamVid's (in any order, capitals and spaces aside), theirs; otherwise
    hues a golden section apart, so that any number of classes gets different ones.

    Example:
        >>> palette(["Sky", "SignSymbol"]), palette(["cat"])
        ([(128, 128, 128), (192, 128, 128)], [(191, 57, 57)])
    """
    for known in (CITYSCAPES, CAMVID):
        colours = {_plain(name): colour for name, colour in known.items()}
        if all(_plain(name) in colours for name in classes):
            return [colours[_plain(name)] for name in classes]
    return [_generated(index) for index in range(len(classes))]


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _generated(index: int) -> Colour:
    # Hues that come close to one another differ in shade.
    saturation, value = SHADES[index % len(SHADES)]
    red, green, blue = colorsys.hsv_to_rgb(index * GOLDEN % 1, saturation, value)
    return round(red * 255), round(green * 255), round(blue * 255)
