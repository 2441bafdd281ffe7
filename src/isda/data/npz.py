"""Reads a numpy archive with x_train, y_train, x_test, y_test and, if it likes, classes."""

from __future__ import annotations

import pickle
import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isda.data.archives import damaged
from isda.data.dataset import Arrays, check_labels

__all__ = ["Contents", "npz_contents", "read_npz"]

KEYS = ("x_train", "y_train", "x_test", "y_test")
MOST_CHANNELS = 4


def read_npz(path: Path) -> Arrays:
    """Read uint8 images (N, H, W) or (N, H, W, C), integer labels (N,), and class names if there are any.

    Nothing is unpickled. Without `classes` there are as many as the largest training label says, named by number.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a key is missing, a shape or type is wrong, a label is out of range, or the file is damaged.
    """
    arrays = _read_arrays(path)
    images = {key: _images(path, key, arrays[key]) for key in ("x_train", "x_test")}
    labels = {key: _labels(path, key, arrays[key]) for key in ("y_train", "y_test")}
    if "classes" in arrays:
        classes = _class_names(path, arrays["classes"])
    else:
        classes = tuple(str(label) for label in range(int(labels["y_train"].max(initial=0)) + 1))
    y_train, y_test = (torch.from_numpy(labels[key]) for key in ("y_train", "y_test"))
    check_labels(f"y_train of {path}", y_train, len(images["x_train"]), len(classes))
    check_labels(f"y_test of {path}", y_test, len(images["x_test"]), len(classes))
    return Arrays(images["x_train"], y_train, images["x_test"], y_test, classes)


class Contents(NamedTuple):
    """What an .npz data set holds, as far as it can be told without reading the images."""

    train: int
    test: int
    classes: int
    channels: int
    image_size: tuple[int, int]


def npz_contents(path: Path) -> Contents:
    """Counts and sizes from the headers of the image arrays; only labels or class names are read.

    Raises:
        ValueError: the file is damaged or not a data set.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            train, test = (_shape(archive, key) for key in ("x_train", "x_test"))
        with np.load(path, allow_pickle=False) as arrays:
            classes = len(arrays["classes"]) if "classes" in arrays else int(arrays["y_train"].max()) + 1
        return Contents(train[0], test[0], classes, (*train, 1)[3], (train[1], train[2]))
    except KeyError as error:
        raise ValueError(f"{path} must hold {', '.join(KEYS)}: {error.args[0]}") from error
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, IndexError) as error:
        raise damaged(path, error) from error


def _shape(archive: zipfile.ZipFile, key: str) -> tuple[int, ...]:
    with archive.open(f"{key}.npy") as stream:
        # Version 1 has a short header, version 2 a long one.
        if np.lib.format.read_magic(stream) == (1, 0):
            return np.lib.format.read_array_header_1_0(stream)[0]
        return np.lib.format.read_array_header_2_0(stream)[0]


def _read_arrays(path: Path) -> dict[str, NDArray[np.generic]]:
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file")
    try:
        # Opening by name leaves the file open when numpy finds that it is no archive.
        with path.open("rb") as stream:
            archive = np.load(stream, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError("it holds a single array")
            missing = [key for key in KEYS if key not in archive]
            arrays = {key: archive[key] for key in (*KEYS, "classes") if key in archive}
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, pickle.UnpicklingError) as error:
        reason = "it is no .npz archive of plain arrays" if "pickle" in str(error) else error
        raise ValueError(f"{path} is damaged, incomplete or no .npz archive: {reason}") from error
    if missing:
        raise ValueError(f"{path} must hold {', '.join(KEYS)}; {', '.join(missing)} is missing")
    return arrays


def _images(path: Path, key: str, array: NDArray[np.generic]) -> Tensor:
    if (
        array.dtype != np.uint8
        or array.ndim not in (3, 4)
        or (array.ndim == 4 and array.shape[3] > MOST_CHANNELS)
        or 0 in array.shape[1:]
    ):
        raise ValueError(
            f"{key} of {path} must be uint8 of shape (N, H, W) or (N, H, W, C) with C in 1..{MOST_CHANNELS}, "
            f"got {array.dtype} of shape {array.shape}"
        )
    channels_last = torch.from_numpy(array if array.ndim == 4 else array[..., None])
    return channels_last.permute(0, 3, 1, 2).contiguous()


def _labels(path: Path, key: str, array: NDArray[np.generic]) -> NDArray[np.int64]:
    if not np.issubdtype(array.dtype, np.integer) or array.ndim != 1:
        raise ValueError(f"{key} of {path} must be integers of shape (N,), got {array.dtype} of shape {array.shape}")
    return array.astype(np.int64)


def _class_names(path: Path, array: NDArray[np.generic]) -> tuple[str, ...]:
    if array.dtype.kind not in "US" or array.ndim != 1 or len(array) == 0:
        raise ValueError(f"classes of {path} must be names of shape (C,), got {array.dtype} of shape {array.shape}")
    return tuple(name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name) for name in array.tolist())
