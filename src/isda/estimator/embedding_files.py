"""Feature rows with labels in CSV files and numpy archives.

Archives hold x_train, y_train and optionally x_test, y_test, classes and provenance.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isda._utils.files import atomic_write, check_is_file
from isda.estimator.table_columns import Line, TableColumns, check_column, find_columns, is_number, list_columns
from isda.lab.data.npz import NotADataSet, open_npz

UNLABELLED = ""
"""The class name of unlabelled rows."""


@dataclass(frozen=True, eq=False)
class FeatureRows:
    """Features (N, A) and the names of their classes (N,), empty for unlabelled rows.

    Example:
        >>> rows = FeatureRows(np.zeros((3, 2)), np.array(["cat", "", "dog"]), "a file")
        >>> rows.labelled.tolist(), rows.take([0]).names.tolist()
        ([True, False, True], ['cat'])
    """

    features: NDArray[np.float64]
    names: NDArray[np.str_]
    source: str
    """The file, for messages."""
    numbers: NDArray[np.int64] | None = None
    """(N,) row numbers in the source, from 1; None for consecutive ones."""
    table: TableColumns | None = None
    """The columns of a table."""
    ids: NDArray[np.str_] | None = None
    """(N, K) cells of the columns that identify rows."""

    @property
    def labelled(self) -> NDArray[np.bool_]:
        """(N,) which rows have a label."""
        return self.names != UNLABELLED

    @property
    def row_numbers(self) -> NDArray[np.int64]:
        """(N,) row numbers in the source, from 1."""
        return np.arange(1, len(self.names) + 1) if self.numbers is None else self.numbers

    def take(self, chosen: NDArray[np.bool_] | NDArray[np.int64] | Sequence[int]) -> FeatureRows:
        """Some of the rows, by index or mask."""
        index = np.asarray(chosen)
        ids = None if self.ids is None else self.ids[index]
        return replace(
            self, features=self.features[index], names=self.names[index], numbers=self.row_numbers[index], ids=ids
        )

    def __len__(self) -> int:
        return len(self.names)


DEFAULT_LABEL_COLUMN = "label"
"""The default column of labels."""

DELIMITERS = "\t;,"
"""In the order in which they are tried: commas may be part of numbers or names."""
MIN_COUNTED_COLUMNS = 8
"""From this number of columns on, a first line 0, 1, 2, ... is taken for column names, as pandas writes them."""


def read_csv_rows(
    path: Path,
    label: str | None = None,
    ignore: Sequence[str] = (),
    like: FeatureRows | None = None,
    ids: Sequence[str] = (),
) -> FeatureRows:
    """Rows of a file of comma-, semicolon- or tab-separated values; an empty label means an unlabelled row.

    The first line has the names of the columns if no cell of it is a number, if one is the name of the labels, or if it
    counts at least eight columns. Other first lines with numbers are values, and the columns are named 1, 2, ...; an
    ambiguous line is an error.

    Args:
        path: of the file, in UTF-8, or in UTF-16 with a byte order mark.
        label: the column of labels; by default the one called "label", else the last.
        ignore: columns that are neither label nor feature.
        like: rows of another table, whose columns this one must have, in any order; features are put into the order of
            that table. The columns of labels and of identifiers may be missing; without labels all rows are unlabelled.
        ids: columns that identify rows, beside obvious ones; see `find_columns`, which also says what is text.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: names the line and the column of a cell that is not a finite number, or another problem.
    """
    check_is_file(path)
    known = None if like is None else like.table
    expected = None if known is None else known.features
    if label is None and known is not None:
        label = known.label
    lines = _lines(path)
    columns = lines[0][1]
    if _has_names(path, lines, {label, DEFAULT_LABEL_COLUMN}, expected):
        lines = lines[1:]
    else:
        columns = [str(number + 1) for number in range(len(columns))]
    if not lines:
        raise ValueError(f"{path} must hold at least one row below the names of its columns, got none")
    used = _used_columns(path, columns, ignore, required=like is None)
    label_index = _label_column(path, used, label, ignore, required=expected is None)
    label = None if label_index is None else columns[label_index]
    for number, cells in lines:
        if len(cells) != len(columns):
            raise ValueError(f"line {number} of {path} must have {len(columns)} cells, got {len(cells)}")
    if known is None:
        table = find_columns(path, lines, used, label, ids)
    else:
        table = known
        others = {
            name: index for name, index in used.items() if index != label_index and name not in (*ids, *known.ids)
        }
        _check_features(path, others, like.source if like is not None else "", known.features)
    if not table.features:
        raise ValueError(
            f"{path} must have a column of features beside its labels, separated by a comma, a semicolon or a tab, got "
            f"{', '.join(columns)}"
        )
    values = table.encode(path, lines, used)
    names = np.array([UNLABELLED if label_index is None else cells[label_index] for _, cells in lines])
    kept = [[cells[used[name]] if name in used else "" for name in table.ids] for _, cells in lines]
    identifiers = np.array(kept, dtype=np.str_).reshape(len(lines), len(table.ids))
    return FeatureRows(values, names, str(path), np.array([number for number, _ in lines]), table, identifiers)


def _lines(path: Path) -> list[Line]:
    """The lines that are not empty."""
    content = path.read_bytes()
    encoding = "utf-16" if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} cannot be read as a table in UTF-8: {error}; save it as UTF-8") from error
    if "\0" in text:
        raise ValueError(f"{path} cannot be read as a table in UTF-8: it holds NUL characters; save it as UTF-8")
    errors, parsed = [], []
    first = next((line for line in text.splitlines() if line.strip()), None)
    if first is None:
        raise ValueError(f"{path} must hold rows of numbers and labels, it is empty")
    for delimiter in [character for character in DELIMITERS if character in first] or [","]:
        # Strict: otherwise an unclosed quote would join all lines below it to one cell.
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        try:
            lines = [(reader.line_num, [cell.strip() for cell in cells]) for cells in reader]
        except csv.Error as error:
            errors.append(f"line {reader.line_num}: {error}")
            continue
        lines = [(number, cells) for number, cells in lines if any(cells)]
        if lines and len({len(cells) for _, cells in lines}) == 1 < len(lines[0][1]):
            return lines
        parsed.append(lines)
    if not any(parsed):
        raise ValueError(f"{path} cannot be read as a table: {errors[0] if errors else 'it has no cells'}")
    return max(parsed, key=lambda lines: len(lines[0][1]) if lines else 0)


def _has_names(path: Path, lines: Sequence[Line], labels: set[str | None], expected: Sequence[str] | None) -> bool:
    """Whether the first line has the names of the columns; a ValueError if it is ambiguous."""
    first = lines[0][1]
    # Numbers may have a decimal comma.
    numbers = [cell for cell in first if is_number(cell.replace(",", ".", 1))]
    words = [index for index, cell in enumerate(first) if cell and cell not in numbers]
    if not numbers or any(first[index] in labels for index in words):
        return True
    numbered = {str(number) for number in range(1, len(first) + 1)}
    if expected is not None and not set(expected) <= numbered and set(expected) <= set(first):
        return True
    if not all(cell.isascii() and cell.isdigit() for cell in numbers):
        return False
    counted = [int(cell) for cell in numbers]
    counting = counted in (list(range(len(counted))), list(range(1, len(counted) + 1)))
    if counting and len(counted) >= MIN_COUNTED_COLUMNS:
        return True
    increasing = all(left < right for left, right in pairwise(counted))
    below = [cells for _, cells in lines[1:]]
    repeated = all(any(first[index] in cells[index : index + 1] for cells in below) for index in words)
    if (increasing and not repeated) if words else counting:
        raise ValueError(
            f"the first line of {path} must be clear, it may hold names of columns or values: got {', '.join(first)}; "
            "add a line of names that are not numbers"
        )
    return False


def _used_columns(path: Path, columns: Sequence[str], ignore: Sequence[str], *, required: bool) -> dict[str, int]:
    """The indices of the columns that are not ignored, by name."""
    for name in ignore:
        if required:
            check_column(path, columns, name)
    used: dict[str, int] = {}
    for index, name in enumerate(columns):
        if name in ignore:
            continue
        if not name:
            raise ValueError(
                f"every column of {path} must have a name, got none for column {index + 1} (perhaps the index of "
                "pandas); give it one, or leave it out with --ignore ''"
            )
        if name in used:
            raise ValueError(
                f"columns of {path} must have different names, got {name!r} for the columns {used[name] + 1} and "
                f"{index + 1}; rename one, or leave both out with --ignore"
            )
        used[name] = index
    return used


def _label_column(
    path: Path, used: dict[str, int], label: str | None, ignore: Sequence[str], *, required: bool
) -> int | None:
    """The index of the column of labels; None if it is missing and not required."""
    if label is not None:
        if label in ignore:
            raise ValueError(f"the column of labels must not be left out, got label and ignore {label!r}")
        if required:
            check_column(path, tuple(used), label)
        return used.get(label)
    alike = [name for name in used if name.casefold() == DEFAULT_LABEL_COLUMN]
    if DEFAULT_LABEL_COLUMN in used or len(alike) == 1:
        return used[DEFAULT_LABEL_COLUMN if DEFAULT_LABEL_COLUMN in used else alike[0]]
    return max(used.values(), default=None)


def _check_features(path: Path, features: Mapping[str, int], source: str, expected: Sequence[str]) -> None:
    """Raise a ValueError unless the features of a table are those of another one."""
    for name in expected:
        if name not in features:
            raise ValueError(
                f"{path} must have the columns of {source}, got none called {name!r}; it has {list_columns(features)}"
            )
    for name in features:
        if name not in expected:
            raise ValueError(
                f"{path} must have the columns of {source} and no others, got {name!r}; remove it, or --ignore it"
            )


MINUS_ONE = -1
"""The label of unlabelled rows."""


def write_npz(path: Path, arrays: Mapping[str, NDArray[Any]], provenance: Mapping[str, Any]) -> None:
    """Write arrays, and their provenance as JSON, to an .npz file that is never left incomplete."""
    with atomic_write(path) as unfinished, unfinished.open("wb") as file:
        np.savez(file, **arrays, provenance=np.array(json.dumps(dict(provenance))))  # type: ignore[arg-type]


def read_npz_rows(path: Path) -> tuple[FeatureRows, FeatureRows | None]:
    """Training rows, and test rows if there are any. Nothing is unpickled.

    Labels are names, empty for unlabelled rows, or indices of `classes`, -1 for unlabelled rows. Without `classes` the
    label -1 might be a class: a warning says how many rows have it.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a key is missing, a shape or type is wrong, a label is out of range, or the file is damaged.
    """
    check_is_file(path)
    with open_npz(path) as archive:
        arrays: dict[str, NDArray[Any]] = dict(archive)
    parts = [part for part in ("train", "test") if part == "train" or f"x_{part}" in arrays]
    for part in parts:
        _check_npz_part(path, arrays, part)
    classes = _npz_class_names(path, arrays["classes"]) if "classes" in arrays else None
    rows = []
    for part in parts:
        names = _npz_labels(path, f"y_{part}", arrays[f"y_{part}"], classes)
        rows.append(FeatureRows(arrays[f"x_{part}"].astype(np.float64), names, str(path)))
    return rows[0], rows[1] if len(rows) > 1 else None


def _check_npz_part(path: Path, arrays: Mapping[str, NDArray[Any]], part: str) -> None:
    """Raise a ValueError unless features and labels of a part have the right shapes and types."""
    for key in (f"x_{part}", f"y_{part}"):
        if key not in arrays:
            raise NotADataSet(f"{path} must hold {key} to be a file of embeddings; it holds {', '.join(arrays)}")
    shape, dtype = arrays[f"x_{part}"].shape, arrays[f"x_{part}"].dtype
    if dtype.kind not in "fiu" or len(shape) != 2 or 0 in shape:
        raise NotADataSet(f"x_{part} of {path} must be numbers of shape (N, A), got {dtype} of shape {shape}")
    rows = shape[0]
    shape, dtype = arrays[f"y_{part}"].shape, arrays[f"y_{part}"].dtype
    if dtype.kind not in "iuUS" or shape != (rows,):
        raise NotADataSet(
            f"y_{part} of {path} must be integers or names of shape ({rows},), got {dtype} of shape {shape}"
        )
    if "classes" in arrays:
        shape, dtype = arrays["classes"].shape, arrays["classes"].dtype
        if dtype.kind not in "US" or len(shape) != 1 or 0 in shape:
            raise NotADataSet(f"classes of {path} must be names of shape (C,), got {dtype} of shape {shape}")


def _npz_class_names(path: Path, array: NDArray[Any]) -> NDArray[np.str_]:
    """The names of the classes, which must be different and not empty."""
    classes = _npz_text(path, "classes", array)
    for position, name in enumerate(classes.tolist()):
        if not name.strip():
            raise NotADataSet(f"classes of {path} must be names, got an empty one at position {position}")
        first = classes.tolist().index(name)
        if first < position:
            raise NotADataSet(
                f"classes of {path} must be different names, got {name!r} at the positions {first} and {position}"
            )
    return classes


def _npz_labels(path: Path, key: str, labels: NDArray[Any], classes: NDArray[np.str_] | None) -> NDArray[np.str_]:
    if labels.dtype.kind in "US":
        names = _npz_text(path, key, labels)
        names[np.char.strip(names) == UNLABELLED] = UNLABELLED
        unknown = [] if classes is None else sorted(set(names.tolist()) - {UNLABELLED, *classes.tolist()})
        if unknown:
            raise NotADataSet(f"{key} of {path} must hold names in classes, got {unknown[0]!r}")
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


def _npz_text(path: Path, key: str, array: NDArray[Any]) -> NDArray[np.str_]:
    if array.dtype.kind == "U":
        return array.astype(np.str_)
    try:
        return np.char.decode(array, "utf-8")
    except UnicodeDecodeError as error:
        # Replacing invalid bytes could merge two classes.
        raise NotADataSet(f"{key} of {path} must be names in UTF-8: {error}") from error
