"""Folders of images and label PNGs with the same names, divided into parts or not; CamVid's layout is one of them."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from isda.data.folder import SUFFIXES
from isda.data.segmentation.classes import find_classes
from isda.data.segmentation.dataset import PARTS, Pair, Part, SegmentationData
from isda.data.segmentation.pixels import label_table

__all__ = ["is_folder", "read_folder"]

VALIDATION_SHARE = 0.2
NAMES = {"train": ("train",), "validation": ("val", "valid", "validation"), "test": ("test",)}

Places = dict[str, tuple[Path, Path]]
"""Part -> the folders of its images and labels."""


def is_folder(path: Path) -> bool:
    """Whether a folder is laid out in one of the ways that `read_folder` knows."""
    return bool(_places(path)[0])


def read_folder(path: Path) -> SegmentationData:
    """The data set in a folder: train/ + trainannot/ (as CamVid), images/ + labels/, or these divided by part.

    Parts are called train, val and test; images/train + labels/train and train/images + train/labels are read alike. A
    folder that is not divided gives a fixed fifth of its images to validation.

    Raises:
        ValueError: an image without labels, labels without an image, or classes that cannot be read.
    """
    places, camvid = _places(path)
    pairs = {part: _pairs(*folders) for part, folders in places.items()}
    if "all" in pairs:
        pairs = _divided(pairs["all"])
    classes = find_classes(path, [p.labels for part in pairs.values() for p in part if p.labels is not None], camvid)
    table = label_table(classes.of_ids)
    parts = {part: Part(tuple(pairs.get(part, ())), table) for part in PARTS}
    return SegmentationData(
        path.absolute().name, **parts, classes=classes.names, colours=classes.colours, source=str(path.absolute())
    )


def _places(path: Path) -> tuple[Places, bool]:
    """The folders of each part, under "all" where they are not divided; and whether the layout is CamVid's."""
    annotated = _existing({name: (path / name, path / f"{name}annot") for names in NAMES.values() for name in names})
    if "train" in annotated:
        return annotated, True
    for images, labels in (("images/{}", "labels/{}"), ("{}/images", "{}/labels")):
        divided = {
            name: (path / images.format(name), path / labels.format(name)) for names in NAMES.values() for name in names
        }
        if "train" in _existing(divided):
            return _existing(divided), False
    whole = (path / "images", path / "labels")
    return ({"all": whole} if all(folder.is_dir() for folder in whole) else {}), False


def _existing(candidates: Places) -> Places:
    """Those of which both folders are there, by the names that parts have with us."""
    part_of = {name: part for part, names in NAMES.items() for name in names}
    there = {name: folders for name, folders in candidates.items() if all(folder.is_dir() for folder in folders)}
    return {part_of[name]: folders for name, folders in there.items()}


def _pairs(images: Path, labels: Path) -> list[Pair]:
    """Images and labels whose names are the same but for their endings, in a fixed order."""
    image_of, label_of = _by_stem(images, SUFFIXES), _by_stem(labels, (".png",))
    if not image_of:
        raise ValueError(f"{images} holds no image ({', '.join(SUFFIXES)})")
    for stem, image in image_of.items():
        if stem not in label_of:
            raise ValueError(f"{image} has no labels: {labels / stem}.png is not there")
    for stem, label in label_of.items():
        if stem not in image_of:
            raise ValueError(f"{label} has no image: there is none of that name in {images}")
    return [Pair(image, label_of[stem]) for stem, image in image_of.items()]


def _by_stem(folder: Path, suffixes: tuple[str, ...]) -> dict[str, Path]:
    """Files by their path below the folder without its ending, sorted."""
    files = sorted(
        Path(where, name)
        for where, _, names in os.walk(folder)
        for name in names
        if name.lower().endswith(suffixes) and not name.startswith(".")
    )
    found: dict[str, Path] = {}
    for file in files:
        stem = file.relative_to(folder).with_suffix("").as_posix()
        if stem in found:
            raise ValueError(f"{file} must be the only image of its name, got {found[stem].name} beside it")
        found[stem] = file
    return found


def _divided(pairs: list[Pair]) -> dict[str, list[Pair]]:
    """A fixed fifth for validation, whatever the seed of a run."""
    if len(pairs) < 2:
        raise ValueError(f"at least 2 images are needed, to learn from and to be judged by, got {pairs[0].image} alone")
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(0)).tolist()
    held = set(order[: max(1, round(VALIDATION_SHARE * len(pairs)))])
    return {
        "train": [pair for i, pair in enumerate(pairs) if i not in held],
        "validation": [pair for i, pair in enumerate(pairs) if i in held],
    }
