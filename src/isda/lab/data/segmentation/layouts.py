"""Read segmentation data by name or path: Cityscapes (Cordts et al., 2016), CamVid's layout, folders of label PNGs.

Cityscapes has 19 classes among its 34 label ids. Its test labels are not public: results are those of validation.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isda.lab.choices import did_you_mean
from isda.lab.data.archives import PART_NAMES, data_root
from isda.lab.data.readers.folder import IMAGE_SUFFIXES, files_below
from isda.lab.data.segmentation.dataset import (
    IGNORED,
    PARTS,
    SegmentationData,
    SegmentationPair,
    SegmentationPart,
    label_table,
    read_ids,
)

CLASS_FILES = ("classes.json", "meta.json", "classes.txt")


@dataclass(frozen=True)
class LabelClasses:
    """Names of the classes, the class of each id that label files may hold, and colours."""

    names: tuple[str, ...]
    of_ids: dict[int, int]
    colours: tuple[str, ...] = ()


def numbered_classes(names: Iterable[str], ignored: int | None = None, colours: Iterable[str] = ()) -> LabelClasses:
    """Classes with ids from 0; ``ignored`` is the id of ignored pixels, which is not a class.

    Example:
        >>> numbered_classes(["sky", "road", "void"], ignored=2)
        LabelClasses(names=('sky', 'road'), of_ids={0: 0, 1: 1, 2: 255}, colours=())
    """
    all_names, all_colours = list(names), list(colours)
    kept = [i for i in range(len(all_names)) if i != ignored]
    of_ids = {identifier: label for label, identifier in enumerate(kept)}
    if ignored is not None:
        of_ids[ignored] = IGNORED
    shown = tuple(all_colours[i] for i in kept) if len(all_colours) == len(all_names) else ()
    return LabelClasses(tuple(all_names[i] for i in kept), of_ids, shown)


CAMVID = numbered_classes(
    (
        *("Sky", "Building", "Pole", "Road", "Pavement", "Tree"),
        *("SignSymbol", "Fence", "Car", "Pedestrian", "Bicyclist", "Void"),
    ),
    ignored=11,
)
"""The eleven classes of CamVid as SegNet's authors grouped them; 11 is void."""


def find_classes(folder: Path, labels: Iterable[Path], camvid: bool) -> LabelClasses:
    """The classes of a data set in a folder with these label files.

    classes.json (or meta.json) holds a list of names, or an object with "classes" and optionally "ignore_index" and
    "colours" ("#rrggbb"); classes.txt holds a name per line. Without one of them, the classes are CamVid's if
    ``camvid`` (the layout is CamVid's) and the labels fit, else they are numbered by the ids.
    """
    file = next((folder / name for name in CLASS_FILES if (folder / name).is_file()), None)
    if file is None:
        highest = max({int(i) for path in labels for i in read_ids(path).unique()} - {IGNORED}, default=0)
        return CAMVID if camvid and highest <= 11 else numbered_classes(f"class {i}" for i in range(highest + 1))
    if file.suffix == ".txt":
        lines = file.read_text(encoding="utf-8").splitlines()
        classes = numbered_classes(line.strip() for line in lines if line.strip())
    else:
        classes = _classes_from_json(file)
    if not 1 <= len(classes.names) <= IGNORED or len(set(classes.names)) < len(classes.names):
        raise ValueError(f"{file} must name from 1 to {IGNORED} classes, each once, got {len(classes.names)} names")
    return classes


def _classes_from_json(file: Path) -> LabelClasses:
    try:
        content: Any = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not JSON: {error}") from error
    described = {"classes": content} if isinstance(content, list) else content
    names = described.get("classes") if isinstance(described, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{file} must hold the names of the classes, as a list or under classes, got {names!r}")
    ignored, colours = described.get("ignore_index"), described.get("colours", [])
    if ignored is not None and (type(ignored) is not int or not 0 <= ignored <= IGNORED):
        raise ValueError(f"{file} must have an id from 0 to {IGNORED} as ignore_index, got {ignored!r}")
    if not isinstance(colours, list) or any(
        not isinstance(colour, str) or not re.fullmatch("#[0-9a-fA-F]{6}", colour) for colour in colours
    ):
        raise ValueError(f'{file} must have colours written "#rrggbb", got {colours!r}')
    if colours and len(colours) != len(names):
        raise ValueError(f"{file} must have a colour for each of its {len(names)} classes, got {len(colours)}")
    return numbered_classes(names, None if ignored == IGNORED else ignored, colours)


VALIDATION_SHARE = 0.2

PartFolders = dict[str, tuple[Path, Path]]
"""Part -> the folders of its images and labels."""


def read_label_folder(path: Path) -> SegmentationData | None:
    """The data set in a folder: train/ + trainannot/ (as CamVid), images/ + labels/, or these divided by part.

    Parts are called train, val and test, as images/train + labels/train or train/images + train/labels. A fixed fifth
    of an undivided folder is the validation part. None if the folder has another layout.

    Raises:
        ValueError: an image without labels, labels without an image, or classes that cannot be read.
    """
    folders, camvid = _part_folders(path)
    if not folders:
        return None
    pairs = {part: _pairs(*image_and_label) for part, image_and_label in folders.items()}
    if "all" in pairs:
        pairs = _split_validation(pairs["all"])
    classes = find_classes(path, [p.labels for part in pairs.values() for p in part if p.labels is not None], camvid)
    table = label_table(classes.of_ids)
    parts = {part: SegmentationPart(tuple(pairs.get(part, ())), table) for part in PARTS}
    return SegmentationData(
        path.absolute().name, **parts, classes=classes.names, colours=classes.colours, source=str(path.absolute())
    )


def _part_folders(path: Path) -> tuple[PartFolders, bool]:
    """The existing folders of each part, or of "all" if they are not divided; and whether the layout is CamVid's."""
    for images, labels in (("{}", "{}annot"), ("images/{}", "labels/{}"), ("{}/images", "{}/labels")):
        folders: PartFolders = {}
        for part, name in ((part, name) for part, names in PART_NAMES.items() for name in names):
            pair = (path / images.format(name), path / labels.format(name))
            if all(folder.is_dir() for folder in pair):
                folders[part] = pair
        if "train" in folders:
            return folders, labels == "{}annot"
    whole = (path / "images", path / "labels")
    return ({"all": whole} if all(folder.is_dir() for folder in whole) else {}), False


def _pairs(images: Path, labels: Path) -> list[SegmentationPair]:
    """Images and labels whose paths are equal except for the suffix, in a fixed order."""
    image_of, label_of = _by_stem(images, IMAGE_SUFFIXES), _by_stem(labels, (".png",))
    if not image_of:
        raise ValueError(f"{images} holds no image ({', '.join(IMAGE_SUFFIXES)})")
    for stem, image in image_of.items():
        if stem not in label_of:
            raise ValueError(f"{image} has no labels: {labels / stem}.png is not there")
    for stem, label in label_of.items():
        if stem not in image_of:
            raise ValueError(f"{label} has no image: there is none of that name in {images}")
    return [SegmentationPair(image, label_of[stem]) for stem, image in image_of.items()]


def _by_stem(folder: Path, suffixes: tuple[str, ...]) -> dict[str, Path]:
    """Files by their path below the folder without its suffix, sorted."""
    by_stem: dict[str, Path] = {}
    for file in files_below(folder, suffixes):
        stem = file.relative_to(folder).with_suffix("").as_posix()
        if stem in by_stem:
            raise ValueError(f"{file} must be the only image of its name, got {by_stem[stem].name} beside it")
        by_stem[stem] = file
    return by_stem


def _split_validation(pairs: list[SegmentationPair]) -> dict[str, list[SegmentationPair]]:
    """A fixed fifth for validation, independent of the seed of a run."""
    if len(pairs) < 2:
        raise ValueError(f"at least 2 images are needed, for training and validation, got {pairs[0].image} alone")
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(0)).tolist()
    held = set(order[: max(1, round(VALIDATION_SHARE * len(pairs)))])
    return {
        "train": [pair for i, pair in enumerate(pairs) if i not in held],
        "validation": [pair for i, pair in enumerate(pairs) if i in held],
    }


CITYSCAPES_CLASSES = (
    *("road", "sidewalk", "building", "wall", "fence", "pole", "traffic light", "traffic sign", "vegetation"),
    *("terrain", "sky", "person", "rider", "car", "truck", "bus", "train", "motorcycle", "bicycle"),
)
CITYSCAPES_LABEL_IDS = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
"""The id of each class in *_labelIds.png; the others of 0..33 are ignored."""

CITYSCAPES_IMAGE_SUFFIX = "_leftImg8bit.png"
CITYSCAPES_LABEL_SUFFIXES = ("_gtFine_labelIds.png", "_gtFine_labelTrainIds.png")


def read_cityscapes(path: Path) -> SegmentationData:
    """Cityscapes: leftImg8bit/PART/CITY/*.png with gtFine/PART/CITY/*_labelIds.png, or else *_labelTrainIds.png.

    Raises:
        ValueError: an image without its labels.
    """
    default = CITYSCAPES_LABEL_SUFFIXES[0]
    suffixes = (end for end in CITYSCAPES_LABEL_SUFFIXES if any((path / "gtFine" / "train").glob(f"*/*{end}")))
    suffix = next(suffixes, default)
    if suffix == default:
        table = label_table(dict.fromkeys(range(34), IGNORED) | {i: c for c, i in enumerate(CITYSCAPES_LABEL_IDS)})
    else:
        table = label_table({c: c for c in range(len(CITYSCAPES_CLASSES))})
    return SegmentationData(
        "cityscapes",
        train=_cityscapes_part(path, "train", suffix, table),
        validation=_cityscapes_part(path, "val", suffix, table),
        test=_cityscapes_part(path, "test", None, table),
        classes=CITYSCAPES_CLASSES,
        source=str(path.absolute()),
    )


def _cityscapes_part(path: Path, name: str, label_suffix: str | None, table: Tensor) -> SegmentationPart:
    """A part of Cityscapes; ``label_suffix`` is None for the test part, whose labels are not public."""
    pairs = []
    for image in sorted((path / "leftImg8bit" / name).glob(f"*/*{CITYSCAPES_IMAGE_SUFFIX}")):
        labels = None
        if label_suffix is not None:
            stem = image.name.removesuffix(CITYSCAPES_IMAGE_SUFFIX)
            labels = path / "gtFine" / name / image.parent.name / f"{stem}{label_suffix}"
            if not labels.is_file():
                raise ValueError(f"{image} has no labels: {labels} is not there")
        pairs.append(SegmentationPair(image, labels))
    return SegmentationPart(tuple(pairs), table)


EXPECTED_LAYOUTS = {
    "cityscapes": "leftImg8bit/ and gtFine/ (leftImg8bit_trainvaltest.zip and gtFine_trainvaltest.zip, unpacked)",
    "camvid": "train/, trainannot/, val/, valannot/, test/ and testannot/",
}
"""The folders of the named data sets."""


def load(name: str | os.PathLike[str], root: str | os.PathLike[str] | None = None) -> SegmentationData:
    """Load a data set by name or path. Images are not decoded yet.

    Args:
        name: a folder, or the name of one under `root`: Cityscapes as it is unpacked, CamVid's layout (train/,
            trainannot/, ...), or images/ and labels/ of PNGs whose pixels are class ids, divided into train, val and
            test or not.
        root: the folder of data sets; by default the environment's ISDA_DATA, else ./data.

    Raises:
        FileNotFoundError: the data set is not there; the message says what to put where.
        ValueError: an unknown name, or a folder with another layout.
    """
    name = os.fspath(name)
    root = data_root(root)
    given = Path(name).expanduser()
    path = next((folder for folder in (given, root / given) if name and folder.is_dir()), None)
    if path is None and name in EXPECTED_LAYOUTS:
        raise FileNotFoundError(
            f"the data set {name} is not under {root}: put {EXPECTED_LAYOUTS[name]} into {root / name}"
        )
    if path is None:
        hint = did_you_mean(name.lower(), EXPECTED_LAYOUTS)
        raise ValueError(f"unknown data set {name!r}{hint or f'; expected a folder, by path or by name under {root}'}")
    if (path / "leftImg8bit" / "train").is_dir() and (path / "gtFine" / "train").is_dir():
        return read_cityscapes(path)
    data = read_label_folder(path)
    if data is None:
        raise ValueError(
            f"{path} must hold leftImg8bit/ and gtFine/, train/ and trainannot/, or images/ and labels/, got none of "
            "them"
        )
    return data
