"""Images with boxes and masks in COCO's format: the official set, or any folder of images and JSON files.

As in COCO's tools, crowd regions and empty boxes are not used in training. They stay in the ground truth, where
evaluation ignores crowds.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from isda.lab.data.archives import PART_NAMES, data_root
from isda.lab.data.coco_masks import check_segmentation, decode_mask, encode_mask
from isda.lab.data.image_files import read_image
from isda.lab.files import check_regular_file

__all__ = ["CocoData", "CocoPart", "ImageEntry", "ObjectAnnotation", "decode_mask", "encode_mask", "load", "read_part"]


COCO_SPLITS = {"train": PART_NAMES["train"], "validation": (*PART_NAMES["validation"], *PART_NAMES["test"])}

MIN_BOX_SIDE = 1.0
"""Boxes less wide or high, in pixels inside the image, count as empty, as in MMDetection."""


class ImageEntry(NamedTuple):
    """One image of an annotation file."""

    id: int
    path: Path
    height: int
    width: int


class ObjectAnnotation(NamedTuple):
    """One object of an image."""

    id: int
    label: int
    """From 1; 0 is the background."""
    box: tuple[float, float, float, float]
    """Left, top, right and bottom, inside the image."""
    segmentation: Any
    """Polygons or run lengths, or None."""


@dataclass(frozen=True, eq=False)
class CocoPart:
    """The images of one annotation file, and their objects."""

    file: Path
    images: tuple[ImageEntry, ...]
    objects: tuple[tuple[ObjectAnnotation, ...], ...]
    """The objects of each image, without crowds and empty boxes."""
    categories: dict[int, str]
    """The file's ids and names, by ascending id; the label of the i-th is i + 1."""
    content: dict[str, Any]
    """The parsed file, for evaluation."""
    digest: str
    """SHA-256 of the file."""

    def __len__(self) -> int:
        return len(self.images)

    @property
    def has_masks(self) -> bool:
        """Whether every object has a mask."""
        return all(entry.segmentation is not None for objects in self.objects for entry in objects)

    @cached_property
    def marked(self) -> tuple[int, ...]:
        """The positions of images with objects."""
        return tuple(index for index, objects in enumerate(self.objects) if objects)

    def image(self, index: int) -> Tensor:
        """uint8 (3, height, width).

        Raises:
            ValueError: the file cannot be decoded, or has another size than the annotations say.
        """
        entry = self.images[index]
        pixels = read_image(entry.path)
        if pixels.shape[1:] != (entry.height, entry.width):
            raise ValueError(
                f"{entry.path} has {pixels.shape[2]}x{pixels.shape[1]} pixels, but {self.file} says that image "
                f"{entry.id} has {entry.width}x{entry.height}"
            )
        return pixels

    def target(self, index: int, masks: bool = False) -> dict[str, Tensor]:
        """The target of torchvision's detectors: boxes (K, 4), labels (K,) and optionally masks (K, H, W)."""
        image, objects = self.images[index], self.objects[index]
        target = {
            "boxes": torch.tensor([entry.box for entry in objects], dtype=torch.float32).reshape(-1, 4),
            "labels": torch.tensor([entry.label for entry in objects], dtype=torch.int64),
        }
        if masks:
            decoded = [decode_mask(entry.segmentation, image.height, image.width) for entry in objects]
            empty = torch.zeros(0, image.height, image.width, dtype=torch.uint8)
            target["masks"] = torch.stack(decoded) if decoded else empty
        return target


def read_part(file: Path, folders: Sequence[Path]) -> CocoPart:
    """Read an annotation file.

    Args:
        file: the JSON.
        folders: where its images may be; the first that has the first image must have all.

    Raises:
        ValueError: names the file, the image or annotation by its id, and what is wrong.
    """
    content, digest = _read_annotation_file(file)
    entries = _entries(file, content, "categories", id=int, name=str)
    categories = dict(sorted((entry["id"], str(entry["name"])) for entry in entries))
    if len(categories) != len(content["categories"]) or not categories:
        raise ValueError(f"{file} must have categories, each with an id of its own")
    images = _images(file, content, folders)
    position = {entry.id: index for index, entry in enumerate(images)}
    label_of = {category: index for index, category in enumerate(categories, start=1)}
    objects: list[list[ObjectAnnotation]] = [[] for _ in images]
    empty: list[int] = []
    annotations = _entries(file, content, "annotations", id=int, image_id=int, category_id=int, bbox=list)
    if len({entry["id"] for entry in annotations}) < len(annotations):
        raise ValueError(f"{file} must give each annotation an id of its own, and has one twice")
    for entry in annotations:
        number, image, category = entry["id"], entry["image_id"], entry["category_id"]
        index = position.get(image)
        if index is None:
            raise ValueError(f"{file}: annotation {number} is of image {image}, which the file lacks")
        _check_annotation(file, entry, images[index], label_of)
        box = _clip_box(entry["bbox"], images[index])
        if entry.get("iscrowd"):
            continue
        if box is None:
            empty.append(number)
            continue
        objects[index].append(ObjectAnnotation(number, label_of[category], box, entry.get("segmentation")))
    if empty:
        warnings.warn(
            f"{file}: {len(empty)} of {len(annotations)} annotations have empty boxes and are not used in training, "
            f"the first of them {empty[0]}",
            stacklevel=2,
        )
    return CocoPart(file, tuple(images), tuple(map(tuple, objects)), categories, content, digest)


def _read_annotation_file(file: Path) -> tuple[dict[str, Any], str]:
    """The content of the file, and its SHA-256."""
    check_regular_file(file)
    raw = file.read_bytes()
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file} must hold a JSON object, got {type(content).__name__}")
    return content, hashlib.sha256(raw).hexdigest()


def _entries(file: Path, content: dict[str, Any], name: str, /, **kinds: type) -> list[dict[str, Any]]:
    """The list ``name`` of the file, whose entries must have fields of these types."""
    entries = content.get(name)
    if not isinstance(entries, list):
        raise ValueError(f"{file} must have a list of {name}, got {type(entries).__name__}")
    for number, entry in enumerate(entries):
        for field, kind in kinds.items():
            value = entry.get(field) if isinstance(entry, dict) else None
            if type(value) is not kind:
                identifier = f" (id {entry['id']!r})" if isinstance(entry, dict) and "id" in entry else ""
                raise ValueError(
                    f"{file}: {name}[{number}]{identifier} must have {kind.__name__} as {field}, got {value!r}"
                )
    return entries


def _images(file: Path, content: dict[str, Any], folders: Sequence[Path]) -> list[ImageEntry]:
    entries = _entries(file, content, "images", id=int, file_name=str, height=int, width=int)
    if not entries:
        raise ValueError(f"{file} must have at least one image, got none")
    if len({entry["id"] for entry in entries}) < len(entries):
        raise ValueError(f"{file} must give each image an id of its own, and has one twice")
    for entry in entries:
        name = Path(entry["file_name"])
        # Annotations are untrusted: a file name must not lead out of the folder of images.
        if name.anchor or ".." in name.parts or not name.parts:
            raise ValueError(
                f"{file}: file_name of image {entry['id']} must be a path below the folder of images, without '..', "
                f"got {entry['file_name']!r}"
            )
    first = entries[0]["file_name"]
    folder = next((folder for folder in folders if (folder / first).is_file()), None)
    if folder is None:
        searched = ", ".join(str(folder) for folder in folders)
        raise ValueError(f"{file}: the file {first!r} of image {entries[0]['id']} is in none of {searched}")
    present = set(os.listdir(folder))
    for entry in entries:
        if entry["file_name"] not in present and not (folder / entry["file_name"]).is_file():
            raise ValueError(f"{file}: the file {entry['file_name']!r} of image {entry['id']} is not in {folder}")
        if entry["height"] < 1 or entry["width"] < 1:
            raise ValueError(
                f"{file}: image {entry['id']} must have a size, got {entry['width']}x{entry['height']} pixels"
            )
    return [ImageEntry(entry["id"], folder / entry["file_name"], entry["height"], entry["width"]) for entry in entries]


def _check_annotation(file: Path, annotation: dict[str, Any], image: ImageEntry, label_of: dict[int, int]) -> None:
    """Raise a ValueError for an annotation that cannot be used."""
    context, box = f"{file}: annotation {annotation['id']} of image {image.id}", annotation["bbox"]
    if annotation["category_id"] not in label_of:
        raise ValueError(f"{context} has the category {annotation['category_id']}, which the file lacks")
    if len(box) != 4 or not all(type(value) in (int, float) and math.isfinite(value) for value in box):
        raise ValueError(f"{context} must have four numbers as bbox: left, top, width, height, got {box!r}")
    segmentation = annotation.get("segmentation")
    problem = None if segmentation is None else check_segmentation(segmentation, image.height, image.width)
    if problem:
        raise ValueError(f"{context}: its segmentation {problem}")


def _clip_box(box: Sequence[float], image: ImageEntry) -> tuple[float, float, float, float] | None:
    """The part of a box (left, top, width, height) inside its image, by its corners; None if that is empty."""
    left, top, width, height = map(float, box)
    right, bottom = min(left + width, image.width), min(top + height, image.height)
    left, top = max(left, 0.0), max(top, 0.0)
    return None if right - left < MIN_BOX_SIDE or bottom - top < MIN_BOX_SIDE else (left, top, right, bottom)


@dataclass(frozen=True, eq=False)
class CocoData:
    """Training and validation images with the same categories."""

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
                raise ValueError(f"{part.file} must mark at least one object that is no crowd, got none")

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the categories; the label of the i-th is i + 1."""
        return tuple(self.train.categories.values())

    @property
    def has_masks(self) -> bool:
        """Whether every training object has a mask."""
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
        ValueError: invalid annotations; names the file and the id.
    """
    given = Path(name).expanduser()
    folder = next((path for path in (given, data_root(root) / given) if path.is_dir()), None)
    if folder is None:
        raise FileNotFoundError(
            f"the set {os.fspath(name)!r} is not there: neither {given} nor {data_root(root) / given} is a folder"
        )
    parts = {part: _find_annotations(folder, part) for part in COCO_SPLITS}
    train, validation = (read_part(file, _image_folders(folder, file)) for file in parts.values())
    return CocoData(folder.resolve().name, train, validation, str(folder.absolute()))


def _find_annotations(folder: Path, part: str) -> Path:
    for word in COCO_SPLITS[part]:
        official = sorted(folder.glob(f"annotations/instances_{word}*.json"))
        names = ("annotations/{}.json", "{}.json", "{}/_annotations.coco.json", "{}/annotations.json")
        others = [folder / name.format(word) for name in names]
        # Of several years the last one.
        files = [*reversed(official), *(file for file in others if file.is_file())]
        if files:
            return files[0]
    raise FileNotFoundError(
        f"{folder} has no {part} annotations: neither annotations/instances_{COCO_SPLITS[part][0]}2017.json nor "
        f"annotations/{COCO_SPLITS[part][0]}.json nor {COCO_SPLITS[part][0]}.json"
    )


def _image_folders(folder: Path, file: Path) -> tuple[Path, ...]:
    """Where the images of an annotation file may be."""
    word = re.sub(r"^instances_", "", file.stem)
    beside = file.parent if file.parent.name != "annotations" else folder
    return tuple(dict.fromkeys([folder / word, folder / "images" / word, folder / "images", beside, folder]))
