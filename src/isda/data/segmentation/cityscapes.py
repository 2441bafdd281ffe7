"""Cityscapes (Cordts et al., 2016) as it is unpacked: leftImg8bit/PART/CITY/*.png and gtFine/PART/CITY/*.png.

Of its 34 label ids 19 are classes. The 2,975 / 500 / 1,525 finely annotated images are train, val and test; the labels
of test are kept secret, so that results are those of validation.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from isda.data.segmentation.dataset import Pair, Part, SegmentationData
from isda.data.segmentation.pixels import IGNORED, label_table

__all__ = ["CLASSES", "LABEL_IDS", "is_cityscapes", "read_cityscapes"]

CLASSES = (
    *("road", "sidewalk", "building", "wall", "fence", "pole", "traffic light", "traffic sign", "vegetation"),
    *("terrain", "sky", "person", "rider", "car", "truck", "bus", "train", "motorcycle", "bicycle"),
)
LABEL_IDS = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
"""The id of each class in *_labelIds.png; the others of 0..33 do not count."""

IMAGE_END = "_leftImg8bit.png"
LABEL_ENDS = ("_gtFine_labelIds.png", "_gtFine_labelTrainIds.png")


def is_cityscapes(path: Path) -> bool:
    """Whether a folder holds Cityscapes."""
    return (path / "leftImg8bit" / "train").is_dir() and (path / "gtFine" / "train").is_dir()


def read_cityscapes(path: Path) -> SegmentationData:
    """The data set in a folder; labels are *_labelIds.png, or *_labelTrainIds.png where these are all there is.

    Raises:
        ValueError: an image without its labels.
    """
    end = next((end for end in LABEL_ENDS if any((path / "gtFine" / "train").glob(f"*/*{end}"))), LABEL_ENDS[0])
    if end == LABEL_ENDS[0]:
        table = label_table(dict.fromkeys(range(34), IGNORED) | {i: c for c, i in enumerate(LABEL_IDS)})
    else:
        table = label_table({c: c for c in range(len(CLASSES))})
    return SegmentationData(
        "cityscapes",
        train=_part(path, "train", end, table),
        validation=_part(path, "val", end, table),
        test=_part(path, "test", end, table, secret=True),
        classes=CLASSES,
        source=str(path.absolute()),
    )


def _part(path: Path, name: str, end: str, table: Tensor, secret: bool = False) -> Part:
    pairs = []
    for image in sorted((path / "leftImg8bit" / name).glob(f"*/*{IMAGE_END}")):
        labels = path / "gtFine" / name / image.parent.name / (image.name.removesuffix(IMAGE_END) + end)
        if not secret and not labels.is_file():
            raise ValueError(f"{image} has no labels: {labels} is not there")
        pairs.append(Pair(image, None if secret else labels))
    return Part(tuple(pairs), table)
