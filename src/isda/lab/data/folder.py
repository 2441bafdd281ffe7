"""Readers of class folders (PATH/train/CLASS/*.png and PATH/test or PATH/val, or PATH/CLASS/*.png) and of ImageNet."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import torch
from torch import Tensor

from isda.lab.data.dataset import Arrays
from isda.lab.data.image_files import (
    GREY_MODES,
    IMAGE_SUFFIXES,
    IN_MEMORY_BYTES,
    ImageFiles,
    check_decodable,
    check_names,
    first_errors,
    listing,
    open_image,
    read_image,
    upright_size,
)
from isda.lab.data.splits import hold_out
from isda.lab.files import check_is_folder

TEST_FRACTION = 0.2

LabelledFiles = tuple[list[Path], Tensor]


def read_folder(path: Path, skip_unreadable: bool = False) -> Arrays:
    """Read a folder of class folders: all images are decoded once, so that a broken one does not end a training.

    Without train/ and test|val/, a fixed fifth of each class becomes the test set. Images of one size that take at most
    1 GiB are kept in memory, grey (one channel) if every file is, else RGB; others are decoded on access, as RGB.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: it has no class folders, one of them is empty, test has a class that train has not, or images cannot
            be read; all of these are listed. With ``skip_unreadable`` they are left out, with a warning.
    """
    check_is_folder(path)
    train = path / "train"
    if not train.is_dir():
        classes = class_folders(path)
        files, labels = _readable(*images_by_class(path, classes), skip_unreadable)
        # Not isda.lab.seeds: the test set must never change.
        fixed = torch.Generator().manual_seed(0)
        parts = hold_out(labels, max(1, round(len(files) * TEST_FRACTION)), fixed)
        training, held_out = (([files[i] for i in part.tolist()], labels[part]) for part in parts)
        return _arrays(training, held_out, classes)
    test = next((path / name for name in ("test", "val") if (path / name).is_dir()), None)
    if test is None:
        raise FileNotFoundError(f"{path} has train/ but neither test/ nor val/; put the test images into one of them")
    classes = class_folders(train)
    training, held_out = (_readable(*images_by_class(part, classes), skip_unreadable) for part in (train, test))
    return _arrays(training, held_out, classes)


def read_imagenet(folder: Path) -> Arrays:
    """Read `folder`/train and `folder`/val, one folder per class named by its WordNet id (n01440764, ...).

    Class names are the first words of WordNet's entries; an id that ImageNet does not have stays as it is. The images
    are not decoded beforehand.
    """
    from timm.data import ImageNetInfo

    train, val = folder / "train", folder / "val"
    wordnet_ids = class_folders(train)
    info = ImageNetInfo("imagenet-1k")
    known = set(info.label_names())
    names = tuple(info.label_name_to_description(i).split(",")[0] if i in known else i for i in wordnet_ids)
    return _arrays(images_by_class(train, wordnet_ids), images_by_class(val, wordnet_ids), names)


def class_folders(folder: Path) -> tuple[str, ...]:
    """The names of the class folders, sorted; hidden folders do not count."""
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise ValueError(f"{folder} must hold one folder of images per class, it has no folders")
    check_names([folder / name for name in names])
    return tuple(names)


def files_below(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """The files of a folder, and of folders below it, that have one of the suffixes and are not hidden, sorted."""
    found = sorted(
        Path(parent, file)
        for parent, _, files in os.walk(folder)
        for file in files
        if file.lower().endswith(suffixes) and not file.startswith(".")
    )
    check_names(found)
    return found


def images_by_class(folder: Path, classes: tuple[str, ...]) -> LabelledFiles:
    """The image files of each class folder (and folders below it) in a fixed order, and their labels."""
    files: list[Path] = []
    labels: list[int] = []
    for name in class_folders(folder):
        if name not in classes:
            raise ValueError(f"{folder / name} is a class that the training images do not have")
        images = files_below(folder / name, IMAGE_SUFFIXES)
        if not images:
            raise ValueError(f"the class folder {folder / name} holds no image ({', '.join(IMAGE_SUFFIXES)})")
        files += images
        labels += [classes.index(name)] * len(images)
    return files, torch.tensor(labels, dtype=torch.int64)


def _readable(files: list[Path], labels: Tensor, skip: bool) -> LabelledFiles:
    errors = first_errors(check_decodable, files)
    if not errors:
        return files, labels
    found = f"{len(errors)} of {len(files)} images cannot be used:\n{listing(list(errors.values()))}"
    if not skip:
        raise ValueError(f"{found}\nmend or remove them, or leave them out with --skip-unreadable")
    warnings.warn(f"{found}\nthey are left out", stacklevel=2)
    kept = [index for index, file in enumerate(files) if file not in errors]
    return [files[index] for index in kept], labels[kept]


def _arrays(train: LabelledFiles, test: LabelledFiles, classes: tuple[str, ...]) -> Arrays:
    (train_files, y_train), (test_files, y_test) = train, test
    channels = _channels_in_memory(train_files + test_files)
    if channels is None:
        return Arrays(ImageFiles(train_files), y_train, ImageFiles(test_files), y_test, classes)
    x_train, x_test = (torch.stack([read_image(f, channels) for f in files]) for files in (train_files, test_files))
    return Arrays(x_train, y_train, x_test, y_test, classes)


def _channels_in_memory(files: list[Path]) -> int | None:
    """The number of channels, or None if the images differ in size or do not fit into memory."""
    with open_image(files[0]) as first:
        height, width = upright_size(first)
    if len(files) * width * height * 3 > IN_MEMORY_BYTES:
        return None
    grey = True
    for file in files:
        with open_image(file) as image:
            if upright_size(image) != (height, width):
                return None
            grey = grey and image.mode in GREY_MODES
    return 1 if grey else 3
