"""Reader of numpy archives with x_train, y_train, x_test, y_test and optionally classes.

Headers are checked before any array is loaded.
"""

from __future__ import annotations

import math
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

from isda.lab.data.dataset import Arrays, check_labels
from isda.lab.files import check_is_file, check_regular_file

# The largest ratio that deflate can reach.
MAX_INFLATION = 1032


class NpyHeader(NamedTuple):
    """Shape and type of an array."""

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]


def read_npy_headers(path: Path, archive: zipfile.ZipFile) -> dict[str, NpyHeader]:
    """The header of each .npy member, by its name without the suffix.

    Raises:
        ValueError: an array holds Python objects, or claims another size than the file has room for.
    """
    file_size = path.stat().st_size
    members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
    return {member.filename.removesuffix(".npy"): _header(archive, member, file_size) for member in members}


def _header(archive: zipfile.ZipFile, member: zipfile.ZipInfo, file_size: int) -> NpyHeader:
    with archive.open(member) as stream:
        # Version 1 has a short header, version 2 a long one.
        short = np.lib.format.read_magic(stream) == (1, 0)
        read = np.lib.format.read_array_header_1_0 if short else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(stream)
        start = stream.tell()
    if dtype.hasobject:
        raise ValueError(f"{member.filename} holds Python objects, not numbers or text")
    claimed, stored = math.prod(shape) * dtype.itemsize, member.file_size - start
    if min(shape, default=0) < 0 or claimed != stored:
        raise ValueError(f"{member.filename} claims {claimed} bytes of {dtype} {shape}, the file holds {stored}")
    if member.compress_size > file_size or member.file_size > member.compress_size * MAX_INFLATION:
        raise ValueError(f"{member.filename} claims {member.file_size} bytes, the file has {file_size}")
    return NpyHeader(shape, dtype)


NPZ_KEYS = ("x_train", "y_train", "x_test", "y_test")
MAX_CHANNELS = 4


def read_npz(path: Path) -> Arrays:
    """Read uint8 images (N, H, W) or (N, H, W, C), integer labels (N,), and class names if there are any.

    Nothing is unpickled, and nothing is loaded before the headers of all arrays make sense. Without `classes` there are
    as many as the largest training label says, named by number.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a key is missing, a shape or type is wrong, a label is out of range, or the file is damaged.
    """
    check_is_file(path)
    with open_npz(path) as archive:
        headers = read_npy_headers(path, archive)
        _check_headers(path, headers)
        arrays = {key: read_npz_member(archive, key) for key in (*NPZ_KEYS, "classes") if key in headers}
    classes = _class_names(path, arrays)
    y_train, y_test = (_labels(path, key, arrays[key], len(classes)) for key in ("y_train", "y_test"))
    return Arrays(_images(arrays["x_train"]), y_train, _images(arrays["x_test"]), y_test, classes)


class NpzContents(NamedTuple):
    """Counts and sizes of an .npz data set."""

    train: int
    test: int
    classes: int
    channels: int
    image_size: tuple[int, int]


def npz_contents(path: Path) -> NpzContents:
    """Counts and sizes from the headers of the arrays; only labels or class names are read.

    Raises:
        ValueError: the file is damaged or not a data set.
    """
    with open_npz(path) as archive:
        headers = read_npy_headers(path, archive)
        _check_headers(path, headers)
        known = ("classes",) if "classes" in headers else ("y_train",)
        classes = _class_names(path, {key: read_npz_member(archive, key) for key in known})
    train = headers["x_train"].shape
    return NpzContents(train[0], headers["x_test"].shape[0], len(classes), (*train, 1)[3], (train[1], train[2]))


@contextmanager
def open_npz(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open an archive; errors of reading it become a ValueError that names the file."""
    check_regular_file(path)
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except NotADataSet:
        raise
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, RuntimeError, MemoryError) as error:
        raise ValueError(f"{path} is damaged, incomplete or no .npz archive of plain arrays: {error}") from error


class NotADataSet(ValueError):
    """The file is intact, but does not hold the expected arrays."""


def _check_headers(path: Path, headers: dict[str, NpyHeader]) -> None:
    """Raise a ValueError unless images, labels and class names have the right types and shapes."""
    missing = [key for key in NPZ_KEYS if key not in headers]
    if missing:
        raise NotADataSet(f"{path} must hold {', '.join(NPZ_KEYS)}; {', '.join(missing)} is missing")
    for split in ("train", "test"):
        shape, dtype = headers[f"x_{split}"]
        if dtype != np.uint8 or len(shape) not in (3, 4) or max(shape[3:], default=1) > MAX_CHANNELS or 0 in shape[1:]:
            raise NotADataSet(
                f"x_{split} of {path} must be uint8 of shape (N, H, W) or (N, H, W, C) with C in 1..{MAX_CHANNELS}, "
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


def read_npz_member(archive: zipfile.ZipFile, key: str) -> NDArray[np.generic]:
    """One array of an archive, without unpickling."""
    with archive.open(f"{key}.npy") as stream:
        array: NDArray[np.generic] = np.lib.format.read_array(stream, allow_pickle=False)
        return array


def _images(array: NDArray[np.generic]) -> Tensor:
    channels_last = torch.from_numpy(array if array.ndim == 4 else array[..., None])
    return channels_last.permute(0, 3, 1, 2).contiguous()


def _labels(path: Path, key: str, array: NDArray[np.generic], num_classes: int) -> Tensor:
    # Before the conversion: an unsigned label may exceed int64.
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
    """The names, or the numbers up to the largest training label, which must be below the number of images."""
    if "classes" not in arrays:
        y_train = arrays["y_train"]
        _check_below(path, "y_train", y_train, len(y_train), f"without `classes` and with {len(y_train)} images")
        return tuple(str(label) for label in range(max(0, int(y_train.max())) + 1))
    names = arrays["classes"].tolist()
    return tuple(name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name) for name in names)
