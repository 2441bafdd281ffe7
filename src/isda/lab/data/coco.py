"""Images with boxes and masks in COCO's format: the official set, or any folder of images and JSON files.

As in COCO's tools, crowd regions and empty boxes are not used in training. They stay in the ground truth, where
evaluation ignores crowds. Masks are polygons or run lengths (column-major, compressed or not).
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

import numpy as np
import torch
from torch import Tensor

from isda.lab.data.catalogue import data_root
from isda.lab.data.image_files import read_image
from isda.lab.data.segmentation import PART_NAMES
from isda.lab.files import check_regular_file

COCO_SPLITS = {"train": PART_NAMES["train"], "validation": (*PART_NAMES["validation"], *PART_NAMES["test"])}
MIN_BOX_SIDE = 1.0
"""Boxes less wide or high, in pixels inside the image, count as empty, as in MMDetection."""

Segmentation = list[list[float]] | dict[str, Any]


def decode_mask(segmentation: Segmentation, height: int, width: int) -> Tensor:
    """uint8 (height, width): 1 inside the object; parts of polygons outside the image are cut off.

    Example:
        >>> decode_mask([[1, 1, 3, 1, 3, 3, 1, 3]], 4, 5).tolist()
        [[0, 0, 0, 0, 0], [0, 1, 1, 0, 0], [0, 1, 1, 0, 0], [0, 0, 0, 0, 0]]
    """
    from pycocotools import mask

    if isinstance(segmentation, list):
        runs = mask.merge(mask.frPyObjects(segmentation, height, width))
    elif isinstance(segmentation["counts"], list):
        runs = mask.frPyObjects(segmentation, height, width)
    else:
        runs = {"size": [height, width], "counts": segmentation["counts"].encode("ascii")}
    return torch.from_numpy(np.ascontiguousarray(mask.decode(runs)))


def encode_mask(pixels: Tensor) -> dict[str, Any]:
    """The compressed run lengths of a mask (height, width), as they stand in result files.

    Example:
        >>> mask = torch.eye(3, dtype=torch.uint8)
        >>> torch.equal(decode_mask(encode_mask(mask), 3, 3), mask)
        True
    """
    from pycocotools import mask

    encoded = mask.encode(np.asfortranarray(pixels.cpu().numpy().astype(np.uint8)))
    return {"size": list(encoded["size"]), "counts": encoded["counts"].decode("ascii")}


def _segmentation_problem(segmentation: Any, height: int, width: int) -> str | None:
    """The problem of a segmentation of an image, as the end of a sentence; None if it is valid."""
    if isinstance(segmentation, list):
        # Through numpy: COCO has some hundred million coordinates.
        polygons = [np.array(polygon) for polygon in segmentation]
        if not polygons or any(one.ndim != 1 or one.size < 6 or one.size % 2 for one in polygons):
            return "must have polygons of at least three points x, y"
        if any(one.dtype.kind not in "if" or not np.isfinite(one).all() for one in polygons):
            return "must have polygons of finite numbers"
        x, y = (np.concatenate([one[start::2] for one in polygons]) for start in (0, 1))
        inside = x.max() > 0 and y.max() > 0 and x.min() < width and y.min() < height
        return None if inside else f"lies outside the image of {width}x{height} pixels"
    if not isinstance(segmentation, dict) or segmentation.get("size") != [height, width]:
        return f"must be polygons, or run lengths of the size [{height}, {width}] of its image"
    counts = segmentation.get("counts")
    if isinstance(counts, list):
        whole = all(type(count) is int and count >= 0 for count in counts) and sum(counts) == height * width
        return None if whole else f"must have run lengths that add up to the {height * width} pixels of its image"
    try:
        decode_mask(segmentation, height, width)
    except (ValueError, TypeError, AttributeError, UnicodeError, MemoryError) as error:
        return f"has run lengths that cannot be read: {error}"
    return None


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
        """uint8 (3, height, width); a ValueError if the file has another size than the annotations say."""
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
    check_regular_file(file)
    raw = file.read_bytes()
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not JSON: {error}") from error
    entries = _entries(file, content, "categories", id=int, name=str)
    categories = dict(sorted((entry["id"], entry["name"]) for entry in entries))
    images = _images(file, content, folders)
    position = {entry.id: index for index, entry in enumerate(images)}
    label_of = {category: index for index, category in enumerate(categories, start=1)}
    objects: list[list[ObjectAnnotation]] = [[] for _ in images]
    annotations = _entries(file, content, "annotations", id=int, image_id=int, category_id=int, bbox=list)
    empty = []
    for entry in annotations:
        context = f"{file}: annotation {entry['id']}"
        if entry["image_id"] not in position:
            raise ValueError(f"{context} is of image {entry['image_id']}, which the file lacks")
        if entry["category_id"] not in label_of:
            raise ValueError(f"{context} has the category {entry['category_id']}, which the file lacks")
        index = position[entry["image_id"]]
        box = _clip_box(context, entry["bbox"], images[index])
        segmentation = entry.get("segmentation")
        problem = segmentation and _segmentation_problem(segmentation, images[index].height, images[index].width)
        if problem:
            raise ValueError(f"{context}: its segmentation {problem}")
        if box is None:
            empty.append(entry["id"])
        elif not entry.get("iscrowd"):
            objects[index].append(ObjectAnnotation(entry["id"], label_of[entry["category_id"]], box, segmentation))
    if empty:
        warnings.warn(
            f"{file}: {len(empty)} of {len(annotations)} annotations have empty boxes and are not used in training, "
            f"the first of them {empty[0]}",
            stacklevel=2,
        )
    digest = hashlib.sha256(raw).hexdigest()
    return CocoPart(file, tuple(images), tuple(map(tuple, objects)), categories, content, digest)


def _entries(file: Path, content: Any, name: str, /, **kinds: type) -> list[dict[str, Any]]:
    """The list ``name`` of the file, whose entries must have fields of these types, and an id of their own."""
    entries = content.get(name) if isinstance(content, dict) else None
    if not isinstance(entries, list) or not entries:
        raise ValueError(f"{file} must have a list of {name}, got {entries!r}")
    for number, entry in enumerate(entries):
        for field, kind in kinds.items():
            value = entry.get(field) if isinstance(entry, dict) else None
            if type(value) is not kind:
                raise ValueError(f"{file}: {name}[{number}] must have {kind.__name__} as {field}, got {value!r}")
    if len({entry["id"] for entry in entries}) < len(entries):
        raise ValueError(f"{file} must give each of its {name} an id of its own, and has one twice")
    return entries


def _images(file: Path, content: dict[str, Any], folders: Sequence[Path]) -> list[ImageEntry]:
    entries = _entries(file, content, "images", id=int, file_name=str, height=int, width=int)
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
        searched = ", ".join(map(str, folders))
        raise ValueError(f"{file}: the file {first!r} of image {entries[0]['id']} is in none of {searched}")
    present = set(os.listdir(folder))
    for entry in entries:
        if entry["file_name"] not in present and not (folder / entry["file_name"]).is_file():
            raise ValueError(f"{file}: the file {entry['file_name']!r} of image {entry['id']} is not in {folder}")
    return [ImageEntry(entry["id"], folder / entry["file_name"], entry["height"], entry["width"]) for entry in entries]


def _clip_box(context: str, box: Sequence[Any], image: ImageEntry) -> tuple[float, float, float, float] | None:
    """The part of a box (left, top, width, height) inside its image, by its corners; None if that is empty."""
    if len(box) != 4 or not all(type(value) in (int, float) and math.isfinite(value) for value in box):
        raise ValueError(f"{context} must have four numbers as bbox: left, top, width, height, got {box!r}")
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
    files = [_find_annotations(folder, part) for part in COCO_SPLITS]
    train, validation = (read_part(file, _image_folders(folder, file)) for file in files)
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
    word = COCO_SPLITS[part][0]
    raise FileNotFoundError(
        f"{folder} has no {part} annotations: neither annotations/instances_{word}2017.json nor "
        f"annotations/{word}.json nor {word}.json"
    )


def _image_folders(folder: Path, file: Path) -> tuple[Path, ...]:
    """Where the images of an annotation file may be."""
    word = re.sub(r"^instances_", "", file.stem)
    beside = file.parent if file.parent.name != "annotations" else folder
    return tuple(dict.fromkeys([folder / word, folder / "images" / word, folder / "images", beside, folder]))
