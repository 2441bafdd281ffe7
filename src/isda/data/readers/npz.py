"""Reads a numpy archive with x_train, y_train, x_test, y_test and, if it likes, classes."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isda.data.dataset import Arrays, check_labels
from isda.data.readers.npy_headers import Header, read_headers
from isda.files import check_regular

__all__ = ["Contents", "NotADataSet", "npz_contents", "opened", "read_member", "read_npz"]

KEYS = ("x_train", "y_train", "x_test", "y_test")
MOST_CHANNELS = 4


def read_npz(path: Path) -> Arrays:
    """Read uint8 images (N, H, W) or (N, H, W, C), integer labels (N,), and class names if there are any.

    Nothing is unpickled, and nothing is loaded before the headers of all arrays make sense. Without `classes` there are
    as many as the largest training label says, named by number.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a key is missing, a shape or type is wrong, a label is out of range, or the file is damaged.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file")
    with opened(path) as archive:
        headers = read_headers(path, archive)
        _check_headers(path, headers)
        arrays = {key: read_member(archive, key) for key in (*KEYS, "classes") if key in headers}
    images = {key: _images(arrays[key]) for key in ("x_train", "x_test")}
    classes = _class_names(path, arrays)
    y_train, y_test = (_labels(path, key, arrays[key], len(classes)) for key in ("y_train", "y_test"))
    return Arrays(images["x_train"], y_train, images["x_test"], y_test, classes)


class Contents(NamedTuple):
    """What an .npz data set holds, as far as it can be told without reading the images."""

    train: int
    test: int
    classes: int
    channels: int
    image_size: tuple[int, int]


def npz_contents(path: Path) -> Contents:
    """Counts and sizes from the headers of the arrays; only labels or class names are read.

    Raises:
        ValueError: the file is damaged or not a data set.
    """
    with opened(path) as archive:
        headers = read_headers(path, archive)
        _check_headers(path, headers)
        known = ("classes",) if "classes" in headers else ("y_train",)
        classes = _class_names(path, {key: read_member(archive, key) for key in known})
    train = headers["x_train"].shape
    return Contents(train[0], headers["x_test"].shape[0], len(classes), (*train, 1)[3], (train[1], train[2]))


@contextmanager
def opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """The archive; what reading it raises becomes one sentence."""
    check_regular(path)
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except NotADataSet:
        raise
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, RuntimeError, MemoryError) as error:
        raise ValueError(f"{path} is damaged, incomplete or no .npz archive of plain arrays: {error}") from error


class NotADataSet(ValueError):
    """The file is whole, but holds something else than images and labels."""


def _check_headers(path: Path, headers: dict[str, Header]) -> None:
    """Raise a ValueError unless images, labels and class names have the types and shapes that they need."""
    missing = [key for key in KEYS if key not in headers]
    if missing:
        raise NotADataSet(f"{path} must hold {', '.join(KEYS)}; {', '.join(missing)} is missing")
    for split in ("train", "test"):
        shape, dtype = headers[f"x_{split}"]
        if dtype != np.uint8 or len(shape) not in (3, 4) or max(shape[3:], default=1) > MOST_CHANNELS or 0 in shape[1:]:
            raise NotADataSet(
                f"x_{split} of {path} must be uint8 of shape (N, H, W) or (N, H, W, C) with C in 1..{MOST_CHANNELS}, "
                f"got {dtype} of shape {shape}"
            )
        images = shape[0]
        shape, dtype = headers[f"y_{split}"]
        if not np.issubdtype(dtype, np.integer) or len(shape) != 1:
            raise NotADataSet(f"y_{split} of {path} must be integers of shape (N,), got {dtype} of shape {shape}")
        if shape != (images,):
            raise NotADataSet(
                f"y_{split} of {path} must be of shape ({images},), one label per image, got {dtype} of shape {shape}"
            )
        if images == 0:
            raise NotADataSet(f"y_{split} of {path} is empty; at least one image is needed")
    if "classes" in headers:
        shape, dtype = headers["classes"]
        if dtype.kind not in "US" or len(shape) != 1 or shape[0] == 0:
            raise NotADataSet(f"classes of {path} must be names of shape (C,), got {dtype} of shape {shape}")


def read_member(archive: zipfile.ZipFile, key: str) -> NDArray[np.generic]:
    """One array of an archive; nothing is unpickled."""
    with archive.open(f"{key}.npy") as stream:
        array: NDArray[np.generic] = np.lib.format.read_array(stream, allow_pickle=False)
        return array


def _images(array: NDArray[np.generic]) -> Tensor:
    channels_last = torch.from_numpy(array if array.ndim == 4 else array[..., None])
    return channels_last.permute(0, 3, 1, 2).contiguous()


def _labels(path: Path, key: str, array: NDArray[np.generic], num_classes: int) -> Tensor:
    # Compared before it is converted: an unsigned label may be more than int64 has.
    _check_below(path, key, array, num_classes, f"with {num_classes} classes")
    labels = torch.from_numpy(array.astype(np.int64))
    check_labels(f"{key} of {path}", labels, len(array), num_classes)
    return labels


def _check_below(path: Path, key: str, array: NDArray[np.generic], limit: int, why: str) -> None:
    highest = int(array.argmax())
    if int(array[highest]) >= limit:
        raise NotADataSet(
            f"{key} of {path} holds the label {array[highest]} at position {highest}; {why} labels must be in "
            f"0..{limit - 1}"
        )


def _class_names(path: Path, arrays: Mapping[str, NDArray[np.generic]]) -> tuple[str, ...]:
    """The names, or the numbers up to the largest training label; a wild label must not become a list of names."""
    if "classes" not in arrays:
        y_train = arrays["y_train"]
        _check_below(path, "y_train", y_train, len(y_train), f"without `classes` and with {len(y_train)} images")
        return tuple(str(label) for label in range(max(0, int(y_train.max())) + 1))
    names = arrays["classes"].tolist()
    return tuple(name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name) for name in names)
