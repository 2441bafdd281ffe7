"""Reads ImageNet (ILSVRC 2012) from folders train/ and val/ of WordNet ids, or unpacks the official archives."""

from __future__ import annotations

import tempfile
from pathlib import Path

from isda.data.archives import damaged
from isda.data.dataset import Arrays
from isda.data.readers.folder import class_folders, images_by_class, read_images
from isda.files import check_regular

__all__ = ["read_imagenet", "unpack_imagenet"]


def read_imagenet(folder: Path) -> Arrays:
    """Read `folder`/train and `folder`/val, one folder per class named by its WordNet id (n01440764, ...).

    Class names are the first words of WordNet's entries; an id that ImageNet does not have stays as it is.
    """
    train, val = folder / "train", folder / "val"
    wordnet_ids = class_folders(train)
    # Not read_folder: ImageNet's own test/, which has no labels, may lie beside val/.
    arrays = read_images(images_by_class(train, wordnet_ids), images_by_class(val, wordnet_ids), wordnet_ids)
    return arrays._replace(classes=tuple(_names(wordnet_ids)))


def unpack_imagenet(devkit: Path, train: Path, val: Path) -> Arrays:
    """Unpack the three official archives beside them (torchvision checks their md5s), then read the folders."""
    from torchvision.datasets import ImageNet

    for archive in (devkit, train, val):
        check_regular(archive)
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
                raise damaged(archive, RuntimeError(reason)) from error
        for split in ("train", "val"):
            Path(unfinished, split).rename(folder / split)
    return read_imagenet(folder)


def _names(wordnet_ids: tuple[str, ...]) -> list[str]:
    from timm.data import ImageNetInfo

    info = ImageNetInfo("imagenet-1k")
    known = set(info.label_names())
    return [info.label_name_to_description(i).split(",")[0] if i in known else i for i in wordnet_ids]
