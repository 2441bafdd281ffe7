"""Where the files of a set in COCO's format lie: training and validation annotations, and their images."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from isda.data.archives import data_root
from isda.data.coco.annotations import CocoPart, read_part

__all__ = ["CocoData", "load"]

SPLITS = {"train": ("train",), "validation": ("val", "valid", "validation", "test")}
"""What folders and files of each part may be called."""


@dataclass(frozen=True, eq=False)
class CocoData:
    """A set to learn from and one to be judged by, with the same categories."""

    name: str
    train: CocoPart
    validation: CocoPart
    source: str = ""
    """The folder."""

    def __post_init__(self) -> None:
        if self.train.categories != self.validation.categories:
            raise ValueError(
                f"{self.validation.file} must have the categories of {self.train.file}, ids and names alike"
            )
        for part in (self.train, self.validation):
            if not part.marked:
                raise ValueError(f"{part.file} must mark at least one object that is no crowd, it has none")

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the categories; the label of the i-th is i + 1."""
        return tuple(self.train.categories.values())

    @property
    def has_masks(self) -> bool:
        """Whether every object to learn has a mask."""
        return self.train.has_masks

    @cached_property
    def digest(self) -> str:
        """A digest of both parts."""
        return hashlib.sha256(f"{self.train.digest} {self.validation.digest}".encode()).hexdigest()


def load(name: str | os.PathLike[str] = "coco", root: str | os.PathLike[str] | None = None) -> CocoData:
    """Load a set of images with boxes.

    Known layouts below its folder: ``annotations/instances_train2017.json`` with the images in ``train2017/`` (COCO's
    own, of any year); ``annotations/train.json`` or ``train.json`` with the images in ``train/``, ``images/train/``,
    ``images/`` or beside it; ``train/_annotations.coco.json`` beside its images. For validation with ``val``.

    Args:
        name: a folder, by its path or by its name under `root`.
        root: the folder of data sets; by default the environment's ISDA_DATA, else ./data.

    Raises:
        FileNotFoundError: there is no such folder, or no annotations in it.
        ValueError: what the files say cannot be used; names the file and the id.
    """
    given = Path(name).expanduser()
    folder = next((path for path in (given, data_root(root) / given) if path.is_dir()), None)
    if folder is None:
        raise FileNotFoundError(
            f"the set {os.fspath(name)!r} is not there: neither {given} nor {data_root(root) / given} is a folder"
        )
    parts = {part: _find(folder, part) for part in SPLITS}
    train, validation = (read_part(file, _image_folders(folder, file)) for file in parts.values())
    return CocoData(folder.resolve().name, train, validation, str(folder.absolute()))


def _find(folder: Path, part: str) -> Path:
    for word in SPLITS[part]:
        official = sorted(folder.glob(f"annotations/instances_{word}*.json"))
        others = [folder / "annotations" / f"{word}.json", folder / f"{word}.json"]
        others += [folder / word / "_annotations.coco.json", folder / f"{word}" / "annotations.json"]
        # Of several years the last one.
        found = [*reversed(official), *(file for file in others if file.is_file())]
        if found:
            return found[0]
    raise FileNotFoundError(
        f"{folder} has no {part} annotations: neither annotations/instances_{SPLITS[part][0]}2017.json nor "
        f"annotations/{SPLITS[part][0]}.json nor {SPLITS[part][0]}.json"
    )


def _image_folders(folder: Path, file: Path) -> tuple[Path, ...]:
    """Where the images of an annotation file may be."""
    word = re.sub(r"^instances_", "", file.stem)
    beside = file.parent if file.parent.name != "annotations" else folder
    return tuple(dict.fromkeys([folder / word, folder / "images" / word, folder / "images", beside, folder]))
