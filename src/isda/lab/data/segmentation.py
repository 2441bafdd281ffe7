"""Images with a class per pixel: Cityscapes (Cordts et al., 2016), CamVid's layout, folders of images and label PNGs.

Cityscapes has 19 classes among its 34 label ids. Its test labels are not public: results are those of validation.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from isda.lab.choices import did_you_mean
from isda.lab.data.catalogue import data_root
from isda.lab.data.folder import files_below
from isda.lab.data.image_files import IMAGE_SUFFIXES, IN_MEMORY_BYTES, open_image, read_image, upright_size
from isda.lab.data.normalise import PUBLISHED_STATISTICS, ChannelStatistics

IGNORED = 255
"""The label of ignored pixels in batches; files may use another id."""
FORBIDDEN = -1
LABEL_MODES = ("L", "P", "1")
PARTS = ("train", "validation", "test")
PART_NAMES = {"train": ("train",), "validation": ("val", "valid", "validation"), "test": ("test",)}
"""Names of the folders of each part."""
CLASS_FILES = ("classes.json", "meta.json", "classes.txt")
VALIDATION_FRACTION = 0.2
BYTES_PER_PIXEL = 4  # three colours and a label

TOOLBOX_STATISTICS = ChannelStatistics((122.67891434 / 255, 116.66876762 / 255, 104.00698793 / 255), (1 / 255,) * 3)
"""Normalisation of the toolbox that the paper names, for weights that were trained with it: pixels minus a mean.

Random weights get ImageNet's statistics instead: the means differ by at most one grey level, and batch normalisation
after the first convolution takes out the scale. The toolbox has the channels in the order blue, green, red; here they
are red, green, blue, as everywhere.
"""


def label_table(classes: Mapping[int, int]) -> Tensor:
    """(256,) int16 classes by the id in a label file, from a mapping of ids to classes or IGNORED.

    255 is always IGNORED; ids that are not in the mapping are FORBIDDEN.

    Example:
        >>> label_table({0: 0, 1: 1, 2: IGNORED})[[0, 1, 2, 3, 255]].tolist()
        [0, 1, 255, -1, 255]
    """
    table = torch.full((256,), FORBIDDEN, dtype=torch.int16)
    table[IGNORED] = IGNORED
    for identifier, label in classes.items():
        table[identifier] = label
    return table


def read_ids(path: Path) -> Tensor:
    """uint8 (H, W) values of a grey or palette PNG."""
    with open_image(path) as image:
        if image.mode not in LABEL_MODES:
            raise ValueError(
                f"{path} must hold class ids, one number per pixel (a grey or palette PNG), got pixels of mode "
                f"{image.mode}"
            )
        try:
            return torch.from_numpy(np.array(image).astype(np.uint8))
        except (OSError, SyntaxError, ValueError) as error:
            raise ValueError(f"{path} cannot be read as an image: {error}") from error


def read_labels(path: Path, table: Tensor) -> Tensor:
    """uint8 (H, W) classes and IGNORED of a label file; a ValueError names the first forbidden id."""
    ids = read_ids(path)
    labels = table[ids.long()]
    if bool((labels == FORBIDDEN).any()):
        row, column = (labels == FORBIDDEN).nonzero()[0].tolist()
        known = [i for i in range(IGNORED) if table[i] != FORBIDDEN]
        raise ValueError(
            f"{path} holds the label id {int(ids[row, column])} at row {row}, column {column}; ids must be among "
            f"{known}, or {IGNORED} for ignored pixels"
        )
    return labels.to(torch.uint8)


class SegmentationPair(NamedTuple):
    """An image and the labels of its pixels."""

    image: Path
    labels: Path | None
    """None if they are not public, as for the test images of Cityscapes."""


@dataclass(frozen=True, eq=False)
class SegmentationPart:
    """Images with labels: ``part[i]`` is (uint8 (3, H, W), uint8 (H, W)) with classes 0..C-1 and IGNORED.

    Args:
        pairs: the files.
        table: (256,) from the ids in label files to classes, see `label_table`.
    """

    pairs: tuple[SegmentationPair, ...]
    table: Tensor

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if self.decoded is not None:
            return self.decoded[0][index], self.decoded[1][index]
        return self._read(self.pairs[index])

    @property
    def labelled(self) -> bool:
        """Whether there are images and all have labels."""
        return bool(self.pairs) and all(pair.labels is not None for pair in self.pairs)

    @cached_property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        """(height, width) of each image, from the headers of the files."""
        sizes = tuple(_size(pair.image) for pair in self.pairs)
        for pair, size in zip(self.pairs, sizes, strict=True):
            if pair.labels is not None:
                _check_sizes(pair, size, _size(pair.labels))
        return sizes

    @cached_property
    def decoded(self) -> tuple[Tensor, Tensor] | None:
        """(N, 3, H, W) images and (N, H, W) labels, if all have one size and take at most 1 GiB; else None."""
        if not self.labelled or len(set(self.sizes)) > 1:
            return None
        height, width = self.sizes[0]
        if len(self) * height * width * BYTES_PER_PIXEL > IN_MEMORY_BYTES:
            return None
        images, labels = zip(*map(self._read, self.pairs), strict=True)
        return torch.stack(images), torch.stack(labels)

    def _read(self, pair: SegmentationPair) -> tuple[Tensor, Tensor]:
        image = read_image(pair.image)
        if pair.labels is None:
            return image, torch.full(image.shape[1:], IGNORED, dtype=torch.uint8)
        labels = read_labels(pair.labels, self.table)
        _check_sizes(pair, (image.shape[1], image.shape[2]), (labels.shape[0], labels.shape[1]))
        return image, labels


def _size(path: Path) -> tuple[int, int]:
    with open_image(path) as image:
        return upright_size(image)


def _check_sizes(pair: SegmentationPair, image: tuple[int, int], labels: tuple[int, int]) -> None:
    if image != labels:
        (height, width), (label_height, label_width) = image, labels
        raise ValueError(
            f"{pair.labels} must have the size of its image {pair.image.name}, {width}x{height} pixels, got "
            f"{label_width}x{label_height}"
        )


@dataclass(frozen=True, eq=False, repr=False)
class SegmentationData:
    """Images with a class for every pixel.

    Args:
        name: for tables.
        train: training images.
        validation: images for the choice of settings.
        test: test images, possibly none.
        classes: names of the classes.
        colours: "#rrggbb" of each class, or empty.
        source: the folder.
    """

    name: str
    train: SegmentationPart
    validation: SegmentationPart
    test: SegmentationPart
    classes: tuple[str, ...]
    colours: tuple[str, ...] = ()
    source: str = ""

    ignore_index = IGNORED

    def __post_init__(self) -> None:
        if not self.train.labelled:
            raise ValueError(f"{self.name} must have training images with labels, got {len(self.train)} images")
        if not 1 <= len(self.classes) <= IGNORED:
            raise ValueError(f"{self.name} must have from 1 to {IGNORED} classes, got {len(self.classes)}")

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.classes)

    @property
    def statistics(self) -> ChannelStatistics:
        """Statistics for normalisation: ImageNet's; see TOOLBOX_STATISTICS."""
        return PUBLISHED_STATISTICS["imagenet"]

    def part(self, name: str) -> SegmentationPart:
        """One of PARTS by its name."""
        return {"train": self.train, "validation": self.validation, "test": self.test}[name]

    def check(self, parts: Sequence[str]) -> None:
        """Check the sizes of all images, and the ids of those that fit in memory, before training."""
        for name in parts:
            part = self.part(name)
            part.sizes  # noqa: B018, reads the size of every image
            if part.decoded is None and part.labelled:
                part[0]  # decodes one image: a wrong kind of label file is wrong everywhere

    @cached_property
    def digest(self) -> str:
        """A digest of file names, sizes and class names, by which runs notice that a data set has changed."""
        listed = [
            [[pair.image.name, *size] for pair, size in zip(part.pairs, part.sizes, strict=True)]
            for part in (self.train, self.validation, self.test)
        ]
        return hashlib.sha256(json.dumps([listed, self.classes]).encode()).hexdigest()

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(self.part(name))} {name}" for name in PARTS)
        return f"SegmentationData({self.name!r}, {counts} images, {self.num_classes} classes)"


class LabelClasses(NamedTuple):
    """Names of the classes, the class of each id that label files may hold, and colours."""

    names: tuple[str, ...]
    of_ids: dict[int, int]
    colours: tuple[str, ...] = ()


def numbered_classes(names: Iterable[str], ignored: int | None = None, colours: Sequence[str] = ()) -> LabelClasses:
    """Classes with ids from 0; ``ignored`` is the id of ignored pixels, which is not a class.

    Example:
        >>> numbered_classes(["sky", "road", "void"], ignored=2)
        LabelClasses(names=('sky', 'road'), of_ids={0: 0, 1: 1, 2: 255}, colours=())
    """
    kept = [(identifier, name) for identifier, name in enumerate(names) if identifier != ignored]
    of_ids = {identifier: label for label, (identifier, _) in enumerate(kept)}
    if ignored is not None:
        of_ids[ignored] = IGNORED
    shown = tuple(colours[identifier] for identifier, _ in kept) if colours else ()
    return LabelClasses(tuple(name for _, name in kept), of_ids, shown)


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
    described = content if isinstance(content, dict) else {"classes": content}
    names, ignored, colours = (described.get(key) for key in ("classes", "ignore_index", "colours"))
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{file} must hold the names of the classes, as a list or under classes, got {names!r}")
    if ignored is not None and (type(ignored) is not int or not 0 <= ignored <= IGNORED):
        raise ValueError(f"{file} must have an id from 0 to {IGNORED} as ignore_index, got {ignored!r}")
    colours = colours or []
    if colours and (
        len(colours) != len(names) or not all(re.fullmatch("#[0-9a-fA-F]{6}", str(colour)) for colour in colours)
    ):
        raise ValueError(f'{file} must have a colour written "#rrggbb" for each of its {len(names)} classes')
    return numbered_classes(names, None if ignored == IGNORED else ignored, colours)


def read_label_folder(path: Path) -> SegmentationData | None:
    """The data set in a folder: train/ + trainannot/ (as CamVid), images/ + labels/, or these divided by part.

    Parts are called train, val and test, as images/train + labels/train or train/images + train/labels. A fixed fifth
    of an undivided folder is the validation part. None if the folder has another layout.
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
    source = path.absolute()
    return SegmentationData(source.name, **parts, classes=classes.names, colours=classes.colours, source=str(source))


def _part_folders(path: Path) -> tuple[dict[str, tuple[Path, Path]], bool]:
    """The existing folders of each part, or of "all" if they are not divided; and whether the layout is CamVid's."""
    for images, labels in (("{}", "{}annot"), ("images/{}", "labels/{}"), ("{}/images", "{}/labels")):
        folders = {}
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
    for stem in image_of.keys() ^ label_of.keys():
        if stem in image_of:
            raise ValueError(f"{image_of[stem]} has no labels: {labels / stem}.png is not there")
        raise ValueError(f"{label_of[stem]} has no image: there is none of that name in {images}")
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
    held = set(order[: max(1, round(VALIDATION_FRACTION * len(pairs)))])
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
    """Cityscapes: leftImg8bit/PART/CITY/*.png with gtFine/PART/CITY/*_labelIds.png, or else *_labelTrainIds.png."""
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
    name, root = os.fspath(name), data_root(root)
    path = next((folder for folder in (Path(name).expanduser(), root / name) if name and folder.is_dir()), None)
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
