"""Readers of class folders (PATH/train/CLASS/*.png and PATH/test or PATH/val, or PATH/CLASS/*.png) and of ImageNet."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from isda.lab.data.archives import damaged_file_error
from isda.lab.data.dataset import Arrays
from isda.lab.data.image_files import GREY_MODES, ImageFiles, open_image, read_image
from isda.lab.data.splits import hold_out
from isda.lab.files import check_is_folder, check_regular_file

IMAGE_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
IN_MEMORY_BYTES = 1 << 30
TEST_FRACTION = 0.2

LabelledFiles = tuple[list[Path], Tensor]


def read_folder(path: Path) -> Arrays:
    """Read a folder of class folders, see `read_images`.

    Without train/ and test|val/, a fixed fifth of each class becomes the test set.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: it has no class folders, one of them is empty, or test has a class that train has not.
    """
    check_is_folder(path)
    train = path / "train"
    if train.is_dir():
        test = next((path / name for name in ("test", "val") if (path / name).is_dir()), None)
        if test is None:
            raise FileNotFoundError(
                f"{path} has train/ but neither test/ nor val/; put the test images into one of them"
            )
        classes = class_folders(train)
        return read_images(images_by_class(train, classes), images_by_class(test, classes), classes)
    classes = class_folders(path)
    files, labels = images_by_class(path, classes)
    # Not isda.lab.seeds: the test set must never change.
    fixed = torch.Generator().manual_seed(0)
    parts = hold_out(labels, max(1, round(len(files) * TEST_FRACTION)), fixed)
    training, held_out = (([files[i] for i in part.tolist()], labels[part]) for part in parts)
    return read_images(training, held_out, classes)


def read_images(train: LabelledFiles, test: LabelledFiles, classes: tuple[str, ...]) -> Arrays:
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


def files_below(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """The files of a folder, and of folders below it, that have one of the suffixes and are not hidden, sorted."""
    return sorted(
        Path(parent, file)
        for parent, _, files in os.walk(folder)
        for file in files
        if file.lower().endswith(suffixes) and not file.startswith(".")
    )


def images_by_class(folder: Path, classes: tuple[str, ...]) -> LabelledFiles:
    """The image files of each class folder (and folders below it) in a fixed order, and their labels."""
    names = class_folders(folder)
    unknown = [name for name in names if name not in classes]
    if unknown:
        raise ValueError(f"{folder / unknown[0]} is a class that the training images do not have")
    files: list[Path] = []
    labels: list[int] = []
    for name in names:
        images = files_below(folder / name, IMAGE_SUFFIXES)
        if not images:
            raise ValueError(f"the class folder {folder / name} holds no image ({', '.join(IMAGE_SUFFIXES)})")
        files += images
        labels += [classes.index(name)] * len(images)
    return files, torch.tensor(labels, dtype=torch.int64)


def _channels_in_memory(files: list[Path]) -> int | None:
    """The number of channels, or None if the images differ in size or do not fit into memory."""
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


def read_imagenet(folder: Path) -> Arrays:
    """Read `folder`/train and `folder`/val, one folder per class named by its WordNet id (n01440764, ...).

    Class names are the first words of WordNet's entries; an id that ImageNet does not have stays as it is.
    """
    train, val = folder / "train", folder / "val"
    wordnet_ids = class_folders(train)
    # Not read_folder: ImageNet's own test/, which has no labels, may lie beside val/.
    arrays = read_images(images_by_class(train, wordnet_ids), images_by_class(val, wordnet_ids), wordnet_ids)
    return arrays._replace(classes=_wordnet_names(wordnet_ids))


def unpack_imagenet(devkit: Path, train: Path, val: Path) -> Arrays:
    """Unpack the three official archives beside them (torchvision checks their md5s), then read the folders."""
    from torchvision.datasets import ImageNet

    for archive in (devkit, train, val):
        check_regular_file(archive)
    folder = train.parent
    # In a folder of its own: an interrupted run must not leave a train/ that looks complete.
    with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=folder) as unfinished:
        for archive in (devkit, train, val):
            Path(unfinished, archive.name).symlink_to(archive)
        for split, archive in (("train", train), ("val", val)):
            try:
                ImageNet(unfinished, split)
            except (RuntimeError, OSError, EOFError) as error:
                reason = str(error).replace(unfinished, str(folder))
                raise damaged_file_error(archive, RuntimeError(reason)) from error
        for split in ("train", "val"):
            Path(unfinished, split).rename(folder / split)
    return read_imagenet(folder)


def _wordnet_names(wordnet_ids: tuple[str, ...]) -> tuple[str, ...]:
    from timm.data import ImageNetInfo

    info = ImageNetInfo("imagenet-1k")
    known = set(info.label_names())
    return tuple(info.label_name_to_description(i).split(",")[0] if i in known else i for i in wordnet_ids)
