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

from isda._utils.choices import did_you_mean
from isda._utils.files import atomic_write
from isda.data.readers.npz import NotADataSet, NpyHeader, open_npz, read_npy_headers, read_npz_member

UNLABELLED = ""
"""The name of a class that nobody has told."""


@dataclass(frozen=True, eq=False)
class FeatureRows:
    """Features (N, A) and the names of their classes (N,), empty for unlabelled rows.

    Example:
        >>> rows = Rows(np.zeros((3, 2)), np.array(["cat", "", "dog"]), "a file")
        >>> rows.labelled.tolist(), rows.take([0]).names.tolist()
        ([True, False, True], ['cat'])
    """

    features: NDArray[np.float64]
    names: NDArray[np.str_]
    source: str
    """Where they come from, for messages."""
    numbers: NDArray[np.int64] | None = None
    """Which row of the source each is, counted from 1; their order if left out."""
    columns: tuple[str, ...] | None = None
    """(A,) names of the features of a table; None if they have none."""
    label: str | None = None
    """The name of its column of labels."""

    @property
    def labelled(self) -> NDArray[np.bool_]:
        """(N,) which rows have a label."""
        return self.names != UNLABELLED

    @property
    def row_numbers(self) -> NDArray[np.int64]:
        """(N,) which row of the source each is, counted from 1."""
        return np.arange(1, len(self.names) + 1) if self.numbers is None else self.numbers

    def take(self, chosen: NDArray[np.bool_] | NDArray[np.int64] | Sequence[int]) -> FeatureRows:
        """Some of the rows."""
        places = np.asarray(chosen)
        return replace(self, features=self.features[places], names=self.names[places], numbers=self.row_numbers[places])

    def __len__(self) -> int:
        return len(self.names)


DEFAULT_LABEL_COLUMN = "label"
"""The column that is taken for the labels where nobody says another."""

DELIMITERS = "\t;,"
"""In the order in which they are tried: commas may be part of numbers or names."""
CERTAIN = 8
"""From so many columns on, a first line that counts 0, 1, 2, ... has names of columns, as pandas writes them."""

Line = tuple[int, list[str]]
"""The number of a line in the file, counted from 1, and its cells without spaces around them."""


def read_csv_rows(
    path: Path, label: str | None = None, ignore: Sequence[str] = (), like: FeatureRows | None = None
) -> FeatureRows:
    """Rows of a file of comma-, semicolon- or tab-separated values; an empty label means an unlabelled row.

    The first line has the names of the columns if no cell of it is a number, if one is the name of the labels, or if it
    counts at least eight columns. Other first lines with numbers are values, and the columns are called 1, 2, ...; a
    line that may be either is refused.

    Args:
        path: of the file, in UTF-8, or in UTF-16 with a byte order mark.
        label: the column of labels; by default the one called "label", else the last.
        ignore: columns that are neither label nor feature.
        like: rows of another table, whose columns this one must have, in any order; features come in the order of that
            table. The column of labels may be missing, then all rows are unlabelled.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: names the line and the column of a cell that is not a finite number, or of what else is wrong.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file")
    wanted = None if like is None else like.columns
    if label is None and like is not None:
        label = like.label
    lines = _lines(path)
    columns = lines[0][1]
    if _has_names(path, lines, {label, DEFAULT_LABEL_COLUMN}, wanted):
        lines = lines[1:]
    else:
        columns = [str(number + 1) for number in range(len(columns))]
    if not lines:
        raise ValueError(f"{path} must hold at least one row below the names of its columns, got none")
    used = _used_columns(path, columns, ignore, required=like is None)
    chosen = _label_column(path, used, label, ignore, required=wanted is None)
    features = {name: place for name, place in used.items() if place != chosen}
    if not features:
        raise ValueError(
            f"{path} must have a column of features beside its labels, separated by a comma, a semicolon or a tab, got "
            f"{', '.join(columns)}"
        )
    if like is not None and wanted is not None:
        features = _in_column_order_of(path, features, like.source, wanted)
    values = _values(path, lines, len(columns), features)
    names = np.array([UNLABELLED if chosen is None else cells[chosen] for _, cells in lines])
    label = None if chosen is None else columns[chosen]
    return FeatureRows(values, names, str(path), np.array([number for number, _ in lines]), tuple(features), label)


def is_number(cell: str) -> bool:
    """Whether a cell is a number as spreadsheets have it: Python takes 1_000 for one too.

    Example:
        >>> [is_number(cell) for cell in ("-1.5", "2e3", "1_000", "cat")]
        [True, True, False, False]
    """
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


def _lines(path: Path) -> list[Line]:
    """The lines that are not empty."""
    text, errors, parsed = _read_csv_text(path), [], []
    first = next((line for line in text.splitlines() if line.strip()), None)
    if first is None:
        raise ValueError(f"{path} must hold rows of numbers and labels, it is empty")
    for delimiter in [one for one in DELIMITERS if one in first] or [","]:
        # Strict: a quote that is never closed would make one cell of all the lines below it.
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


def _read_csv_text(path: Path) -> str:
    content = path.read_bytes()
    encoding = "utf-16" if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} cannot be read as a table in UTF-8: {error}; save it as UTF-8") from error
    if "\0" in text:
        raise ValueError(f"{path} cannot be read as a table in UTF-8: it holds NUL characters; save it as UTF-8")
    return text


def _has_names(path: Path, lines: Sequence[Line], labels: set[str | None], wanted: Sequence[str] | None) -> bool:
    """Whether the first line has the names of the columns; a ValueError where it may have or not."""
    first = lines[0][1]
    # A decimal comma does not make a name of a number.
    numbers = [cell for cell in first if is_number(cell.replace(",", ".", 1))]
    words = [place for place, cell in enumerate(first) if cell and cell not in numbers]
    if not numbers or any(first[place] in labels for place in words):
        return True
    if wanted is not None and not set(wanted) <= set(map(str, range(1, len(first) + 1))) and set(wanted) <= set(first):
        return True
    if not all(cell.isascii() and cell.isdigit() for cell in numbers):
        return False
    counted = [int(cell) for cell in numbers]
    counting = counted in (list(range(len(counted))), list(range(1, len(counted) + 1)))
    if counting and len(counted) >= CERTAIN:
        return True
    rising = all(one < other for one, other in pairwise(counted))
    below = [cells for _, cells in lines[1:]]
    again = all(any(first[place] in cells[place : place + 1] for cells in below) for place in words)
    if (rising and not again) if words else counting:
        raise ValueError(
            f"the first line of {path} must be clear, it may hold names of columns or values: got {', '.join(first)}; "
            "write names that are not numbers into it or above it"
        )
    return False


def _used_columns(path: Path, columns: Sequence[str], ignore: Sequence[str], *, required: bool) -> dict[str, int]:
    """The columns that are not left out, by name, with their places."""
    for name in ignore:
        if required:
            _check_column(path, columns, name)
    used: dict[str, int] = {}
    for place, name in enumerate(columns):
        if name in ignore:
            continue
        if not name:
            raise ValueError(
                f"every column of {path} must have a name, got none for column {place + 1} (pandas writes its index "
                "so); give it one, or leave it out with --ignore ''"
            )
        if name in used:
            raise ValueError(
                f"columns of {path} must have different names, got {name!r} for the columns {used[name] + 1} and "
                f"{place + 1}; rename one, or leave both out with --ignore"
            )
        used[name] = place
    return used


def _label_column(
    path: Path, used: dict[str, int], label: str | None, ignore: Sequence[str], *, required: bool
) -> int | None:
    """Where the labels are; None where the column is missing and may be."""
    if label is not None:
        if label in ignore:
            raise ValueError(f"the column of labels must not be left out, got label and ignore {label!r}")
        if required:
            _check_column(path, tuple(used), label)
        return used.get(label)
    alike = [name for name in used if name.casefold() == DEFAULT_LABEL_COLUMN]
    if DEFAULT_LABEL_COLUMN in used or len(alike) == 1:
        return used[DEFAULT_LABEL_COLUMN if DEFAULT_LABEL_COLUMN in used else alike[0]]
    return max(used.values(), default=None)


def _in_column_order_of(path: Path, features: dict[str, int], source: str, wanted: Sequence[str]) -> dict[str, int]:
    """The features in the order of another table."""
    for name in wanted:
        if name not in features:
            raise ValueError(
                f"{path} must have the columns of {source}, got none called {name!r}; it has {_list(features)}"
            )
    for name in features:
        if name not in wanted:
            raise ValueError(f"{path} must have the columns of {source} and no others, got {name!r}; remove it")
    return {name: features[name] for name in wanted}


def _values(path: Path, lines: Sequence[Line], width: int, features: dict[str, int]) -> np.ndarray:
    values = np.empty((len(lines), len(features)))
    for row, (number, cells) in enumerate(lines):
        if len(cells) != width:
            raise ValueError(f"line {number} of {path} must have {width} cells, got {len(cells)}")
        for column, (name, place) in enumerate(features.items()):
            cell = cells[place]
            values[row, column] = float(cell) if is_number(cell) else np.nan
            if not np.isfinite(values[row, column]):
                hint = "write decimals with a point" if "," in cell else "--ignore leaves a column out"
                raise ValueError(f"{name!r} in line {number} of {path} must be a number, got {cell!r}; {hint}")
    return values


def _check_column(path: Path, columns: Sequence[str], name: str) -> None:
    if name not in columns:
        raise ValueError(f"{path} has no column {name!r}{did_you_mean(name, columns) or f'; it has {_list(columns)}'}")


def _list(columns: Sequence[str] | dict[str, int]) -> str:
    names = list(columns)
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")


MINUS_ONE = -1
"""The label of unlabelled rows."""


def write_npz(path: Path, arrays: Mapping[str, NDArray[Any]], provenance: Mapping[str, Any]) -> None:
    """Write arrays, and where they come from as a text of JSON, to a file that is there as a whole or not at all."""
    with atomic_write(path) as unfinished, unfinished.open("wb") as file:
        np.savez(file, **arrays, provenance=np.array(json.dumps(dict(provenance))))  # type: ignore[arg-type]


def read_npz_rows(path: Path) -> tuple[FeatureRows, FeatureRows | None]:
    """Training rows, and test rows if there are any. Nothing is unpickled, headers are checked before arrays are read.

    Labels are integers, -1 for unlabelled rows, that count the names in `classes`; or names themselves, empty for
    unlabelled rows. Without `classes` the label -1 might be a class: a warning says how many rows have it.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a key is missing, a shape or type is wrong, a label is out of range, or the file is damaged.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file")
    with open_npz(path) as archive:
        headers = read_npy_headers(path, archive)
        parts = [part for part in ("train", "test") if part == "train" or f"x_{part}" in headers]
        for part in parts:
            _check_npz_part(path, headers, part)
        wanted = [f"{letter}_{part}" for part in parts for letter in "xy"] + ["classes"] * ("classes" in headers)
        arrays = {key: read_npz_member(archive, key) for key in wanted}
    classes = _npz_class_names(path, arrays["classes"]) if "classes" in arrays else None
    made = [_npz_rows(path, arrays, part, classes) for part in parts]
    return made[0], made[1] if len(made) > 1 else None


def _check_npz_part(path: Path, headers: Mapping[str, NpyHeader], part: str) -> None:
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


def _npz_rows(
    path: Path, arrays: Mapping[str, NDArray[Any]], part: str, classes: NDArray[np.str_] | None
) -> FeatureRows:
    features, labels = arrays[f"x_{part}"], arrays[f"y_{part}"]
    return FeatureRows(features.astype(np.float64), _npz_labels(path, f"y_{part}", labels, classes), str(path))


def _npz_class_names(path: Path, array: NDArray[Any]) -> NDArray[np.str_]:
    """The names of the classes; two that are the same, or one that is empty, would lose a class."""
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


def _npz_text(path: Path, key: str, array: NDArray[Any]) -> NDArray[np.str_]:
    if array.dtype.kind == "U":
        return array.astype(np.str_)
    try:
        return np.char.decode(array, "utf-8")
    except UnicodeDecodeError as error:
        # To replace what cannot be decoded would make one class of two.
        raise NotADataSet(f"{key} of {path} must be names in UTF-8: {error}") from error
