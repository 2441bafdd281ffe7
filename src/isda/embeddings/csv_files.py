"""Tables of numbers with a column of labels, as spreadsheets and pandas write them."""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from isda.choices import did_you_mean
from isda.embeddings.rows import UNLABELLED, Rows

__all__ = ["LABEL", "is_number", "read_csv_rows"]

LABEL = "label"
"""The column that is taken for the labels where nobody says another."""

DELIMITERS = "\t;,"
"""In the order in which they are tried: commas may be part of numbers or names."""
CERTAIN = 8
"""From so many columns on, a first line that counts 0, 1, 2, ... has names of columns, as pandas writes them."""

Line = tuple[int, list[str]]
"""The number of a line in the file, counted from 1, and its cells without spaces around them."""


def read_csv_rows(path: Path, label: str | None = None, ignore: Sequence[str] = (), like: Rows | None = None) -> Rows:
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
    if _has_names(path, lines, {label, LABEL}, wanted):
        lines = lines[1:]
    else:
        columns = [str(number + 1) for number in range(len(columns))]
    if not lines:
        raise ValueError(f"{path} must hold at least one row below the names of its columns, got none")
    used = _used(path, columns, ignore, required=like is None)
    chosen = _label_column(path, used, label, ignore, required=wanted is None)
    features = {name: place for name, place in used.items() if place != chosen}
    if not features:
        raise ValueError(
            f"{path} must have a column of features beside its labels, separated by a comma, a semicolon or a tab, got "
            f"{', '.join(columns)}"
        )
    if like is not None and wanted is not None:
        features = _like(path, features, like.source, wanted)
    values = _values(path, lines, len(columns), features)
    names = np.array([UNLABELLED if chosen is None else cells[chosen] for _, cells in lines])
    label = None if chosen is None else columns[chosen]
    return Rows(values, names, str(path), np.array([number for number, _ in lines]), tuple(features), label)


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
    text, errors, parsed = _text(path), [], []
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


def _text(path: Path) -> str:
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


def _used(path: Path, columns: Sequence[str], ignore: Sequence[str], *, required: bool) -> dict[str, int]:
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
    alike = [name for name in used if name.casefold() == LABEL]
    if LABEL in used or len(alike) == 1:
        return used[LABEL if LABEL in used else alike[0]]
    return max(used.values(), default=None)


def _like(path: Path, features: dict[str, int], source: str, wanted: Sequence[str]) -> dict[str, int]:
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
