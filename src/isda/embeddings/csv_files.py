"""Tables of numbers with a column of labels, as spreadsheets write them."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from isda.choices import did_you_mean
from isda.embeddings.rows import Rows

__all__ = ["LABEL", "read_csv_rows"]

LABEL = "label"
"""The column that is taken for the labels where nobody says another."""

DELIMITERS = ",;\t"


def read_csv_rows(path: Path, label: str | None = None, ignore: Sequence[str] = ()) -> Rows:
    """Rows of a file of comma-, semicolon- or tab-separated values; an empty label means an unlabelled row.

    The first line has the names of the columns, unless one of its cells is a number: then there are no names, and the
    columns are called 1, 2, ...

    Args:
        path: of the file.
        label: the column of labels; by default the one called "label", else the last.
        ignore: columns that are neither label nor feature.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: names the line and the column of a cell that is no finite number, or of what else is wrong.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file")
    lines = _lines(path)
    named = not any(map(_is_number, lines[0][1]))
    columns = [cell.strip() for cell in lines[0][1]] if named else [str(n + 1) for n in range(len(lines[0][1]))]
    lines = lines[1:] if named else lines
    if not lines:
        raise ValueError(f"{path} must hold at least one row below the names of its columns, got none")
    chosen = _column(path, columns, label) if label is not None else columns.index(LABEL) if LABEL in columns else -1
    left_out = {chosen % len(columns), *(_column(path, columns, name) for name in ignore)}
    places = [place for place in range(len(columns)) if place not in left_out]
    if not places:
        raise ValueError(f"{path} must have a column of features beside its labels, got {', '.join(columns)}")
    features = np.empty((len(lines), len(places)))
    for row, (number, cells) in enumerate(lines):
        if len(cells) != len(columns):
            raise ValueError(f"line {number} of {path} must have {len(columns)} cells, got {len(cells)}")
        for column, place in enumerate(places):
            features[row, column] = _number(cells[place], f"{columns[place]!r} in line {number} of {path}")
    names = np.array([cells[chosen].strip() for _, cells in lines])
    return Rows(features, names, str(path), np.array([number for number, _ in lines]))


def _lines(path: Path) -> list[tuple[int, list[str]]]:
    """The lines that are not empty, with their numbers."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            first = file.readline()
            file.seek(0)
            delimiter = max(DELIMITERS, key=first.count)
            reader = csv.reader(file, delimiter=delimiter)
            lines = [(reader.line_num, cells) for cells in reader if any(cell.strip() for cell in cells)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} cannot be read as a table in UTF-8: {error}") from error
    if not lines:
        raise ValueError(f"{path} must hold rows of numbers and labels, it is empty")
    return lines


def _column(path: Path, columns: Sequence[str], name: str) -> int:
    if name not in columns:
        hint = did_you_mean(name, columns) or f"; it has {', '.join(columns[:20])}"
        raise ValueError(f"{path} has no column {name!r}{hint}")
    return columns.index(name)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _number(cell: str, where: str) -> float:
    value = float(cell) if _is_number(cell) else np.nan
    if not np.isfinite(value):
        raise ValueError(f"{where} must be a number, got {cell.strip()!r}; --ignore leaves a column out")
    return value
