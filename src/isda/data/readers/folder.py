"""Reads a folder of class folders: PATH/train/CLASS/*.png and PATH/test (or val)/CLASS/*.png, or PATH/CLASS/*.png."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from isda.data.dataset import Arrays
from isda.data.image_files import GREY_MODES, ImageFiles, open_image, read_image
from isda.data.splits import hold_out

__all__ = ["class_folders", "images_by_class", "list_folder", "read_folder", "read_images", "split_folders"]

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
IN_MEMORY_BYTES = 1 << 30
TEST_FRACTION = 0.2

Labelled = tuple[list[Path], Tensor]


def split_folders(path: Path) -> tuple[Path, Path] | None:
    """The folders of training and test images below `path`, if it is divided into them."""
    test = next((path / name for name in ("test", "val") if (path / name).is_dir()), None)
    return (path / "train", test) if test is not None and (path / "train").is_dir() else None


def list_folder(path: Path) -> tuple[Labelled, Labelled, tuple[str, ...]]:
    """Training files and labels, test files and labels, and class names; no image is opened.

    Without train/ and test|val/, a fixed fifth of each class becomes the test set.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: it has no class folders, one of them is empty, or test has a class that train has not.
    """
    if not path.is_dir():
        raise FileNotFoundError(f"{path} is not a folder")
    folders = split_folders(path)
    if folders is not None:
        classes = class_folders(folders[0])
        return images_by_class(folders[0], classes), images_by_class(folders[1], classes), classes
    if (path / "train").is_dir():
        raise FileNotFoundError(f"{path} has train/ but neither test/ nor val/; put the test images into one of them")
    classes = class_folders(path)
    files, labels = images_by_class(path, classes)
    # A generator of its own: the test set stays the same, however seeds are mixed.
    fixed = torch.Generator().manual_seed(0)
    training, test = hold_out(labels, max(1, round(len(files) * TEST_FRACTION)), fixed)
    return (
        ([files[i] for i in training.tolist()], labels[training]),
        ([files[i] for i in test.tolist()], labels[test]),
        classes,
    )


def read_folder(path: Path) -> Arrays:
    """Read a folder of class folders, see `list_folder` and `read_images`."""
    return read_images(*list_folder(path))


def read_images(train: Labelled, test: Labelled, classes: tuple[str, ...]) -> Arrays:
    """Training and test images, decoded now if they are alike and small, else on access.

    "Alike and small" means one size for all, and at most 1 GiB in memory. They are then grey (one channel) if every
    file is, else RGB; images decoded on access are always RGB.
    """
    (train_files, y_train), (test_files, y_test) = train, test
    channels = _channels_in_memory(train_files + test_files)
    if channels is None:
        return Arrays(ImageFiles(train_files), y_train, ImageFiles(test_files), y_test, classes)
    x_train, x_test = (torch.stack([read_image(f, channels) for f in files]) for files in (train_files, test_files))
    return Arrays(x_train, y_train, x_test, y_test, classes)


def class_folders(folder: Path) -> tuple[str, ...]:
    """The names of the class folders, sorted; hidden folders do not count."""
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise ValueError(f"{folder} must hold one folder of images per class, it has no folders")
    return tuple(names)


def images_by_class(folder: Path, classes: tuple[str, ...]) -> Labelled:
    """The image files of each class folder (and folders below it) in a fixed order, and their labels."""
    found = class_folders(folder)
    unknown = [name for name in found if name not in classes]
    if unknown:
        raise ValueError(f"{folder / unknown[0]} is a class that the training images do not have")
    files: list[Path] = []
    labels: list[int] = []
    for name in found:
        images = sorted(
            Path(where, file)
            for where, _, names in os.walk(folder / name)
            for file in names
            if file.lower().endswith(SUFFIXES) and not file.startswith(".")
        )
        if not images:
            raise ValueError(f"the class folder {folder / name} holds no image ({', '.join(SUFFIXES)})")
        files += images
        labels += [classes.index(name)] * len(images)
    return files, torch.tensor(labels, dtype=torch.int64)


def _channels_in_memory(files: list[Path]) -> int | None:
    """How many channels the images need if they can live in memory, else None."""
    with open_image(files[0]) as first:
        width, height = first.size
    if len(files) * width * height * 3 > IN_MEMORY_BYTES:
        return None
    grey = True
    for file in files:
        with open_image(file) as image:
            if image.size != (width, height):
                return None
            grey = grey and image.mode in GREY_MODES
    return 1 if grey else 3
