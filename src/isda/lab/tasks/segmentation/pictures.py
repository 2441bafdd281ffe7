"""Class colours and side-by-side pictures of image, ground truth and prediction."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from isda.lab.data.augment import Normalize
from isda.lab.data.segmentation import IGNORED, SegmentationPart
from isda.lab.tasks.common.data import to_network_input
from isda.lab.tasks.common.pictures import Colour, distinct_colour, png_bytes, save_picture
from isda.lab.tasks.segmentation.evaluation import probabilities
from isda.lab.tasks.segmentation.settings import SegmentationConfig

if TYPE_CHECKING:
    from PIL import ImageFont

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

SHADES = ((0.7, 0.75), (0.45, 0.95), (0.95, 0.5))
"""Saturation and value: hues of classes that come close to one another differ in shade."""


def palette(classes: Sequence[str]) -> list[Colour]:
    """A colour for each class.

    If all names are Cityscapes' or all are CamVid's (in any order, ignoring case and spaces), theirs; otherwise hues a
    golden section apart, so that any number of classes gets different ones.

    Example:
        >>> palette(["Sky", "SignSymbol"]), palette(["cat"])
        ([(128, 128, 128), (192, 128, 128)], [(191, 57, 57)])
    """
    for known in (CITYSCAPES, CAMVID):
        colours = {_plain(name): colour for name, colour in known.items()}
        if all(_plain(name) in colours for name in classes):
            return [colours[_plain(name)] for name in classes]
    return [distinct_colour(index, *SHADES[index % len(SHADES)]) for index in range(len(classes))]


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


SMALLEST, LARGEST = 200, 480
"""Widths of a panel: smaller images are enlarged, larger ones reduced."""
GAP, LINE, TEXT = 8, 20, 13
SHARE = 0.6
"""Opacity of a class's colour over the image."""


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
        truth: (H, W) class indices; pixels of ``ignore_index`` are left dark. None if it is unknown.
        prediction: (H, W) class indices.
        classes: the names of the C classes.
        ignore_index: label of pixels without class.
        colours: of the classes; by default `isda.lab.tasks.segmentation.pictures.palette`.

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
    # The pixels of reduced panels are means of the image's; labels have no mean.
    resampling = Image.Resampling.NEAREST if size[0] >= image.shape[2] else Image.Resampling.BOX
    pixels = np.array(Image.fromarray(image.permute(1, 2, 0).cpu().numpy()).resize(size, resampling))
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
    return png_bytes(sheet)


def label_picture(labels: Tensor, classes: Sequence[str], *, colours: Sequence[Colour] | None = None) -> bytes:
    r"""Class indices (H, W) as an indexed PNG: its pixels are the indices, its palette the colours of the classes.

    Example:
        >>> label_picture(torch.tensor([[0, 1]]), ["road", "sky"])[:4]
        b'\x89PNG'
    """
    from PIL import Image

    if labels.ndim != 2 or len(classes) > 256:
        raise ValueError(
            f"labels must have shape (H, W), of at most 256 classes, got {tuple(labels.shape)} and {len(classes)}"
        )
    picture = Image.fromarray(labels.cpu().numpy().astype(np.uint8))
    picture.putpalette([part for colour in _colours(classes, colours) for part in colour])
    return png_bytes(picture)


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


def draw_predictions(
    network: nn.Module, part: SegmentationPart, indices: Sequence[int], config: SegmentationConfig, folder: Path
) -> None:
    """Image, truth and prediction of each image side by side, as PNG files named by number and image."""
    for number, index in enumerate(indices):
        image, labels = part[index]
        predicted = probabilities(network, prepare_image(image, network, config)).argmax(0)
        name = f"{number + 1}-{part.pairs[index].image.stem}.png"
        colours = dataset_colours(config)
        picture = overlay(image, labels, predicted.cpu(), config.classes, ignore_index=IGNORED, colours=colours)
        save_picture(picture, folder / name)


def prepare_image(image: Tensor, network: nn.Module, config: SegmentationConfig) -> Tensor:
    """The input of a network for a uint8 image (3, H, W), on its device."""
    trained = next(network.parameters())
    pixels = Normalize(config.mean, config.std)(image.unsqueeze(0)).to(trained.device)
    return to_network_input(pixels, trained.dtype, config.channels_last).squeeze(0)


def dataset_colours(config: SegmentationConfig) -> list[Colour] | None:
    """The data set's own colours, if it has any.

    Example:
        >>> from types import SimpleNamespace
        >>> dataset_colours(SimpleNamespace(colours=("#ff0080",)))
        [(255, 0, 128)]
    """
    numbers = [int(colour.removeprefix("#"), 16) for colour in config.colours]
    return [(number >> 16, number >> 8 & 255, number & 255) for number in numbers] or None
