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

from isda._utils.choices import did_you_mean
from isda.data.archives import data_root
from isda.data.readers.folder import IMAGE_SUFFIXES
from isda.data.segmentation.dataset import (
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
    """Classes whose ids count from 0; ``ignored`` is the id of pixels that do not count, which is then no class.

    Example:
        >>> numbered(["sky", "road", "void"], ignored=2)
        Classes(names=('sky', 'road'), of_ids={0: 0, 1: 1, 2: 255}, colours=())
    """
    listed, shown = list(names), list(colours)
    of_ids, kept = dict[int, int](), list[int]()
    for identifier in range(max(len(listed), 0 if ignored is None else ignored + 1)):
        if identifier == ignored:
            of_ids[identifier] = IGNORED
        elif identifier < len(listed):
            of_ids[identifier] = len(kept)
            kept.append(identifier)
    return LabelClasses(
        tuple(listed[i] for i in kept), of_ids, tuple(shown[i] for i in kept) if len(shown) == len(listed) else ()
    )


CAMVID = numbered_classes(
    (
        *("Sky", "Building", "Pole", "Road", "Pavement", "Tree"),
        *("SignSymbol", "Fence", "Car", "Pedestrian", "Bicyclist", "Void"),
    ),
    ignored=11,
)
"""The eleven classes of CamVid as SegNet's authors grouped them; 11 is void."""


def find_classes(folder: Path, labels: Iterable[Path], camvid: bool) -> LabelClasses:
    """The classes of a data set in a folder.

    classes.json (or meta.json) holds a list of names, or an object with "classes" and perhaps "ignore_index" and
    "colours" ("#rrggbb"); classes.txt holds a name per line. Without one, CamVid's classes where ``camvid`` and the
    labels fit; else as many as there are ids.

    Args:
        folder: of the data set.
        labels: its label files.
        camvid: whether it is laid out as CamVid is.
    """
    file = next((folder / name for name in CLASS_FILES if (folder / name).is_file()), None)
    if file is not None:
        return _classes_from_text(file) if file.suffix == ".txt" else _classes_from_json(file)
    found = {int(i) for path in labels for i in read_ids(path).unique()} - {IGNORED}
    if camvid and max(found, default=0) <= 11:
        return CAMVID
    return numbered_classes(f"class {i}" for i in range(max(found, default=0) + 1))


def _classes_from_text(file: Path) -> LabelClasses:
    names = [line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    return _checked_classes(file, numbered_classes(names))


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
    return _checked_classes(file, numbered_classes(names, None if ignored == IGNORED else ignored, colours))


def _checked_classes(file: Path, classes: LabelClasses) -> LabelClasses:
    if not 1 <= len(classes.names) <= IGNORED or len(set(classes.names)) < len(classes.names):
        raise ValueError(f"{file} must name from 1 to {IGNORED} classes, each once, got {len(classes.names)} names")
    return classes


VALIDATION_SHARE = 0.2
FOLDER_NAMES = {"train": ("train",), "validation": ("val", "valid", "validation"), "test": ("test",)}

PartFolders = dict[str, tuple[Path, Path]]
"""Part -> the folders of its images and labels."""


def is_label_folder(path: Path) -> bool:
    """Whether a folder is laid out in one of the ways that `read_label_folder` knows."""
    return bool(_part_folders(path)[0])


def read_label_folder(path: Path) -> SegmentationData:
    """The data set in a folder: train/ + trainannot/ (as CamVid), images/ + labels/, or these divided by part.

    Parts are called train, val and test; images/train + labels/train and train/images + train/labels are read alike. A
    folder that is not divided gives a fixed fifth of its images to validation.

    Raises:
        ValueError: an image without labels, labels without an image, or classes that cannot be read.
    """
    places, camvid = _part_folders(path)
    pairs = {part: _pairs(*folders) for part, folders in places.items()}
    if "all" in pairs:
        pairs = _split_validation(pairs["all"])
    classes = find_classes(path, [p.labels for part in pairs.values() for p in part if p.labels is not None], camvid)
    table = label_table(classes.of_ids)
    parts = {part: SegmentationPart(tuple(pairs.get(part, ())), table) for part in PARTS}
    return SegmentationData(
        path.absolute().name, **parts, classes=classes.names, colours=classes.colours, source=str(path.absolute())
    )


def _part_folders(path: Path) -> tuple[PartFolders, bool]:
    """The folders of each part, under "all" where they are not divided; and whether the layout is CamVid's."""
    annotated = _existing_folders(
        {name: (path / name, path / f"{name}annot") for names in FOLDER_NAMES.values() for name in names}
    )
    if "train" in annotated:
        return annotated, True
    for images, labels in (("images/{}", "labels/{}"), ("{}/images", "{}/labels")):
        divided = {
            name: (path / images.format(name), path / labels.format(name))
            for names in FOLDER_NAMES.values()
            for name in names
        }
        if "train" in _existing_folders(divided):
            return _existing_folders(divided), False
    whole = (path / "images", path / "labels")
    return ({"all": whole} if all(folder.is_dir() for folder in whole) else {}), False


def _existing_folders(candidates: PartFolders) -> PartFolders:
    """Those of which both folders are there, by the names that parts have with us."""
    part_of = {name: part for part, names in FOLDER_NAMES.items() for name in names}
    there = {name: folders for name, folders in candidates.items() if all(folder.is_dir() for folder in folders)}
    return {part_of[name]: folders for name, folders in there.items()}


def _pairs(images: Path, labels: Path) -> list[SegmentationPair]:
    """Images and labels whose names are the same but for their endings, in a fixed order."""
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


def _split_validation(pairs: list[SegmentationPair]) -> dict[str, list[SegmentationPair]]:
    """A fixed fifth for validation, whatever the seed of a run."""
    if len(pairs) < 2:
        raise ValueError(f"at least 2 images are needed, to learn from and to be judged by, got {pairs[0].image} alone")
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(0)).tolist()
    held = set(order[: max(1, round(VALIDATION_SHARE * len(pairs)))])
    return {
        "train": [pair for i, pair in enumerate(pairs) if i not in held],
        "validation": [pair for i, pair in enumerate(pairs) if i in held],
    }


# Cityscapes (Cordts et al., 2016) as it is unpacked: leftImg8bit/PART/CITY/*.png and gtFine/PART/CITY/*.png.
#
# Of its 34 label ids 19 are classes. The 2,975 / 500 / 1,525 finely annotated images are train, val and test; the
# labels of test are kept secret, so that results are those of validation.

CITYSCAPES_CLASSES = (
    *("road", "sidewalk", "building", "wall", "fence", "pole", "traffic light", "traffic sign", "vegetation"),
    *("terrain", "sky", "person", "rider", "car", "truck", "bus", "train", "motorcycle", "bicycle"),
)
CITYSCAPES_LABEL_IDS = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
"""The id of each class in *_labelIds.png; the others of 0..33 do not count."""

CITYSCAPES_IMAGE_SUFFIX = "_leftImg8bit.png"
CITYSCAPES_LABEL_SUFFIXES = ("_gtFine_labelIds.png", "_gtFine_labelTrainIds.png")


def is_cityscapes(path: Path) -> bool:
    """Whether a folder holds Cityscapes."""
    return (path / "leftImg8bit" / "train").is_dir() and (path / "gtFine" / "train").is_dir()


def read_cityscapes(path: Path) -> SegmentationData:
    """The data set in a folder; labels are *_labelIds.png, or *_labelTrainIds.png where these are all there is.

    Raises:
        ValueError: an image without its labels.
    """
    end = next(
        (end for end in CITYSCAPES_LABEL_SUFFIXES if any((path / "gtFine" / "train").glob(f"*/*{end}"))),
        CITYSCAPES_LABEL_SUFFIXES[0],
    )
    if end == CITYSCAPES_LABEL_SUFFIXES[0]:
        table = label_table(dict.fromkeys(range(34), IGNORED) | {i: c for c, i in enumerate(CITYSCAPES_LABEL_IDS)})
    else:
        table = label_table({c: c for c in range(len(CITYSCAPES_CLASSES))})
    return SegmentationData(
        "cityscapes",
        train=_cityscapes_part(path, "train", end, table),
        validation=_cityscapes_part(path, "val", end, table),
        test=_cityscapes_part(path, "test", end, table, secret=True),
        classes=CITYSCAPES_CLASSES,
        source=str(path.absolute()),
    )


def _cityscapes_part(path: Path, name: str, end: str, table: Tensor, secret: bool = False) -> SegmentationPart:
    pairs = []
    for image in sorted((path / "leftImg8bit" / name).glob(f"*/*{CITYSCAPES_IMAGE_SUFFIX}")):
        labels = path / "gtFine" / name / image.parent.name / (image.name.removesuffix(CITYSCAPES_IMAGE_SUFFIX) + end)
        if not secret and not labels.is_file():
            raise ValueError(f"{image} has no labels: {labels} is not there")
        pairs.append(SegmentationPair(image, None if secret else labels))
    return SegmentationPart(tuple(pairs), table)


EXPECTED_LAYOUTS = {
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
    if path is None and name in EXPECTED_LAYOUTS:
        raise FileNotFoundError(
            f"the data set {name} is not under {place}: put {EXPECTED_LAYOUTS[name]} into {place / name}"
        )
    if path is None:
        hint = did_you_mean(name.lower(), EXPECTED_LAYOUTS)
        raise ValueError(f"unknown data set {name!r}{hint or f'; expected a folder, by path or by name under {place}'}")
    if is_cityscapes(path):
        return read_cityscapes(path)
    if is_label_folder(path):
        return read_label_folder(path)
    raise ValueError(
        f"{path} must hold leftImg8bit/ and gtFine/, train/ and trainannot/, or images/ and labels/, got none of them"
    )
