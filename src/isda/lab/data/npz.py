"""Reader of numpy archives with x_train, y_train, x_test, y_test and optionally classes."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray
from torch import Tensor

from isda.lab.data.dataset import Arrays, check_labels
from isda.lab.files import check_is_file, check_regular_file

NPZ_KEYS = ("x_train", "y_train", "x_test", "y_test")
MAX_CHANNELS = 4


class NotADataSet(ValueError):
    """The file is intact, but does not hold the expected arrays."""


@contextmanager
def open_npz(path: Path) -> Iterator[NpzFile]:
    """Open an archive of plain arrays; errors of reading it become a ValueError that names the file."""
    check_regular_file(path)
    try:
        with np.load(path, allow_pickle=False) as archive:
            if not isinstance(archive, NpzFile):
                raise ValueError("it is a single array")
            yield archive
    except NotADataSet:
        raise
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, RuntimeError, MemoryError) as error:
        raise ValueError(f"{path} is damaged, incomplete or no .npz archive of plain arrays: {error}") from error


def read_npz(path: Path) -> Arrays:
    """Read uint8 images (N, H, W) or (N, H, W, C), integer labels (N,), and class names if there are any.

    Nothing is unpickled. Without `classes` there are as many as the largest training label says, named by number.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a key is missing, a shape or type is wrong, a label is out of range, or the file is damaged.
    """
    check_is_file(path)
    with open_npz(path) as archive:
        if missing := [key for key in NPZ_KEYS if key not in archive]:
            raise NotADataSet(f"{path} must hold {', '.join(NPZ_KEYS)}; {', '.join(missing)} is missing")
        y_train, y_test = (_labels(path, key, archive[key]) for key in ("y_train", "y_test"))
        if "classes" in archive:
            classes = _class_names(path, archive["classes"])
        else:
            highest = int(y_train.max())
            if highest >= len(y_train):
                raise NotADataSet(
                    f"y_train of {path} must have labels below {len(y_train)}, the number of images, without `classes`,"
                    f" got {highest}"
                )
            classes = tuple(str(label) for label in range(highest + 1))
        x_train, x_test = (_images(path, key, archive[key]) for key in ("x_train", "x_test"))
    for key, labels, images in (("y_train", y_train, x_train), ("y_test", y_test, x_test)):
        check_labels(f"{key} of {path}", labels, len(images), len(classes))
    return Arrays(x_train, y_train, x_test, y_test, classes)


def npz_contents(path: Path) -> dict[str, Any]:
    """Numbers of images and classes, channels and size of the images of a data set; images are not read."""
    shapes = {}
    with open_npz(path) as archive, zipfile.ZipFile(path) as members:
        if not set(NPZ_KEYS) <= set(archive):
            raise NotADataSet(f"{path} must hold {', '.join(NPZ_KEYS)}")
        for key in ("x_train", "x_test"):
            with members.open(f"{key}.npy") as stream:
                short = np.lib.format.read_magic(stream) == (1, 0)
                read = np.lib.format.read_array_header_1_0 if short else np.lib.format.read_array_header_2_0
                shapes[key] = read(stream)[0]
        classes = len(archive["classes"]) if "classes" in archive else int(archive["y_train"].max()) + 1
    train, height, width, *channels = shapes["x_train"]
    return {
        "train": train,
        "test": shapes["x_test"][0],
        "classes": classes,
        "channels": channels[0] if channels else 1,
        "image_size": (height, width),
    }


def _images(path: Path, key: str, array: NDArray[np.generic]) -> Tensor:
    if array.ndim == 3:
        array = array[..., None]
    if array.dtype != np.uint8 or array.ndim != 4 or array.shape[3] > MAX_CHANNELS or 0 in array.shape[1:]:
        raise NotADataSet(
            f"{key} of {path} must be uint8 of shape (N, H, W) or (N, H, W, C) with C in 1..{MAX_CHANNELS}, "
            f"got {array.dtype} of shape {array.shape}"
        )
    return torch.from_numpy(array).permute(0, 3, 1, 2).contiguous()


def _labels(path: Path, key: str, array: NDArray[np.generic]) -> Tensor:
    if not np.issubdtype(array.dtype, np.integer) or array.ndim != 1 or not len(array):
        raise NotADataSet(f"{key} of {path} must be integers of shape (N,), got {array.dtype} of shape {array.shape}")
    return torch.from_numpy(array.astype(np.int64))


def _class_names(path: Path, names: NDArray[np.generic]) -> tuple[str, ...]:
    if names.dtype.kind not in "US" or names.ndim != 1 or not len(names):
        raise NotADataSet(f"classes of {path} must be names of shape (C,), got {names.dtype} of shape {names.shape}")
    return tuple(name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name) for name in names.tolist())
