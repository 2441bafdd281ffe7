"""Embeddings in numpy archives: x_train, y_train and, if there are any, x_test, y_test, classes and provenance."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isda.data.readers.npy_headers import Header, read_headers
from isda.data.readers.npz import NotADataSet, opened, read_member
from isda.embeddings.rows import UNLABELLED, Rows
from isda.files import replacing

__all__ = ["read_npz_rows", "write_npz"]

MINUS_ONE = -1
"""The label of unlabelled rows."""


def write_npz(path: Path, arrays: Mapping[str, NDArray[Any]], provenance: Mapping[str, Any]) -> None:
    """Write arrays, and where they come from as a text of JSON, to a file that is there as a whole or not at all."""
    with replacing(path) as unfinished, unfinished.open("wb") as file:
        np.savez(file, **arrays, provenance=np.array(json.dumps(dict(provenance))))  # type: ignore[arg-type]


def read_npz_rows(path: Path) -> tuple[Rows, Rows | None]:
    """Training rows, and test rows if there are any. Nothing is unpickled, headers are checked before arrays are read.

    Labels are integers, -1 for unlabelled rows, that count the names in `classes`; or names themselves, empty for
    unlabelled rows. Without `classes` the label -1 might be a class: a warning says how many rows have it.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a key is missing, a shape or type is wrong, a label is out of range, or the file is damaged.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file")
    with opened(path) as archive:
        headers = read_headers(path, archive)
        parts = [part for part in ("train", "test") if part == "train" or f"x_{part}" in headers]
        for part in parts:
            _check(path, headers, part)
        wanted = [f"{letter}_{part}" for part in parts for letter in "xy"] + ["classes"] * ("classes" in headers)
        arrays = {key: read_member(archive, key) for key in wanted}
    classes = _class_names(path, arrays["classes"]) if "classes" in arrays else None
    made = [_rows(path, arrays, part, classes) for part in parts]
    return made[0], made[1] if len(made) > 1 else None


def _check(path: Path, headers: Mapping[str, Header], part: str) -> None:
    """Raise a ValueError unless features and labels of a part have the shapes and types that they need."""
    for key in (f"x_{part}", f"y_{part}"):
        if key not in headers:
            raise NotADataSet(f"{path} must hold {key} to be a file of embeddings; it holds {', '.join(headers)}")
    shape, dtype = headers[f"x_{part}"]
    if dtype.kind not in "fiu" or len(shape) != 2 or 0 in shape:
        raise NotADataSet(f"x_{part} of {path} must be numbers of shape (N, A), got {dtype} of shape {shape}")
    rows = shape[0]
    shape, dtype = headers[f"y_{part}"]
    if dtype.kind not in "iuUS" or shape != (rows,):
        raise NotADataSet(
            f"y_{part} of {path} must be integers or names of shape ({rows},), got {dtype} of shape {shape}"
        )
    if "classes" in headers:
        shape, dtype = headers["classes"]
        if dtype.kind not in "US" or len(shape) != 1 or 0 in shape:
            raise NotADataSet(f"classes of {path} must be names of shape (C,), got {dtype} of shape {shape}")


def _rows(path: Path, arrays: Mapping[str, NDArray[Any]], part: str, classes: NDArray[np.str_] | None) -> Rows:
    features, labels = arrays[f"x_{part}"], arrays[f"y_{part}"]
    return Rows(features.astype(np.float64), _names(path, f"y_{part}", labels, classes), str(path))


def _class_names(path: Path, array: NDArray[Any]) -> NDArray[np.str_]:
    """The names of the classes; two that are the same, or one that is empty, would lose a class."""
    classes = _text(path, "classes", array)
    for position, name in enumerate(classes.tolist()):
        if not name.strip():
            raise NotADataSet(f"classes of {path} must be names, got an empty one at position {position}")
        first = classes.tolist().index(name)
        if first < position:
            raise NotADataSet(
                f"classes of {path} must be different names, got {name!r} at the positions {first} and {position}"
            )
    return classes


def _names(path: Path, key: str, labels: NDArray[Any], classes: NDArray[np.str_] | None) -> NDArray[np.str_]:
    if labels.dtype.kind in "US":
        names = _text(path, key, labels)
        names[np.char.strip(names) == UNLABELLED] = UNLABELLED
        strange = [] if classes is None else sorted(set(names.tolist()) - {UNLABELLED, *classes.tolist()})
        if strange:
            raise NotADataSet(f"{key} of {path} must hold names in classes, got {strange[0]!r}")
        return names
    unlabelled = labels == MINUS_ONE
    if classes is None:
        if unlabelled.any():
            warnings.warn(
                f"{int(unlabelled.sum())} of {len(labels)} rows in {key} of {path} have the label -1 and are taken for "
                "rows without a label; if -1 is a class, store names as labels",
                stacklevel=2,
            )
        return np.where(unlabelled, UNLABELLED, labels.astype(np.str_))
    outside = (labels < MINUS_ONE) | (labels >= len(classes))
    if outside.any():
        first = int(outside.argmax())
        raise NotADataSet(
            f"{key} of {path} holds the label {labels[first]} at position {first}; with {len(classes)} classes labels "
            f"must be in 0..{len(classes) - 1}, or -1 for unlabelled rows"
        )
    return np.where(unlabelled, UNLABELLED, classes[np.where(unlabelled, 0, labels).astype(np.int64)])


def _text(path: Path, key: str, array: NDArray[Any]) -> NDArray[np.str_]:
    if array.dtype.kind == "U":
        return array.astype(np.str_)
    try:
        return np.char.decode(array, "utf-8")
    except UnicodeDecodeError as error:
        # To replace what cannot be decoded would make one class of two.
        raise NotADataSet(f"{key} of {path} must be names in UTF-8: {error}") from error
