"""`load`: from a name or a path to images with labelled pixels."""

from __future__ import annotations

import os
from pathlib import Path

from isda.choices import did_you_mean
from isda.data.archives import data_root
from isda.data.segmentation.cityscapes import is_cityscapes, read_cityscapes
from isda.data.segmentation.dataset import SegmentationData
from isda.data.segmentation.folder import is_folder, read_folder

__all__ = ["load"]

WANTED = {
    "cityscapes": "leftImg8bit/ and gtFine/ (leftImg8bit_trainvaltest.zip and gtFine_trainvaltest.zip, unpacked)",
    "camvid": "train/, trainannot/, val/, valannot/, test/ and testannot/",
}
"""The data sets that have a name, and what their folders hold."""


def load(name: str | os.PathLike[str], root: str | os.PathLike[str] | None = None) -> SegmentationData:
    """Load a data set by name or path. Images are not decoded yet.

    Args:
        name: a folder, or the name of one under `root`: Cityscapes as it is unpacked, CamVid's layout (train/,
            trainannot/, ...), or images/ and labels/ of PNGs whose pixels are class ids, divided into train, val and
            test or not.
        root: the folder of data sets; by default the environment's ISDA_DATA, else ./data.

    Raises:
        FileNotFoundError: the data set is not there; the message says what to put where.
        ValueError: an unknown name, or a folder that is laid out in another way.
    """
    name = os.fspath(name)
    place = data_root(root)
    given = Path(name).expanduser()
    path = next((folder for folder in (given, place / given) if name and folder.is_dir()), None)
    if path is None and name in WANTED:
        raise FileNotFoundError(f"the data set {name} is not under {place}: put {WANTED[name]} into {place / name}")
    if path is None:
        hint = did_you_mean(name.lower(), WANTED)
        raise ValueError(f"unknown data set {name!r}{hint or f'; expected a folder, by path or by name under {place}'}")
    if is_cityscapes(path):
        return read_cityscapes(path)
    if is_folder(path):
        return read_folder(path)
    raise ValueError(
        f"{path} must hold leftImg8bit/ and gtFine/, train/ and trainannot/, or images/ and labels/, got none of them"
    )
