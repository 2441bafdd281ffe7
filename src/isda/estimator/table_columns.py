"""Columns of a table: numbers, text that is taken for categories (one-hot), identifiers and labels."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isda._utils.choices import did_you_mean

Line = tuple[int, list[str]]
"""The number of a line in the file, from 1, and its cells without surrounding spaces."""
MAX_CATEGORIES = 100
"""Different texts in a column of features, at most."""
MIN_DISTINCT = 10
"""A column of so many rows or more with a different text in each identifies them."""
_ID_NAME = re.compile(r"(^|[\W_])(id|uuid|guid|index|filename|file|path)$", re.IGNORECASE)
_CAMEL_ID = re.compile(r"[a-z](Id|ID)$")


def is_number(cell: str) -> bool:
    """Whether a cell is a number; unlike in Python, 1_000 is not.

    Example:
        >>> [is_number(cell) for cell in ("-1.5", "2e3", "1_000", "cat")]
        [True, True, False, False]
    """
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


@dataclass(frozen=True)
class TableColumns:
    """Which columns of a table are features, categories, identifiers and labels.

    Example:
        >>> columns = TableColumns(("size", "colour"), {"colour": ("blue", "red")})
        >>> columns.encoded_names
        ('size', 'colour=blue', 'colour=red')
        >>> columns.encode(Path("a.csv"), [(2, ["3", "red"]), (3, ["4", "blue"])], {"size": 0, "colour": 1})
        array([[3., 0., 1.],
               [4., 1., 0.]])
    """

    features: tuple[str, ...]
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The values of features that are text; each is a feature of 0 and 1."""
    ids: tuple[str, ...] = ()
    """Columns that identify rows; they are no features, predictions repeat them."""
    label: str | None = None

    @property
    def encoded_names(self) -> tuple[str, ...]:
        """The names of the features of `encode`."""
        return tuple(
            encoded
            for name in self.features
            for encoded in (
                [f"{name}={value}" for value in self.categories[name]] if name in self.categories else [name]
            )
        )

    def encode(self, path: Path, lines: Sequence[Line], indices: Mapping[str, int]) -> NDArray[np.float64]:
        """(N, A) features of rows; a value that is not one of the categories is none of them, with a warning.

        Args:
            path: of the table, for messages.
            lines: the rows, with equally many cells.
            indices: positions of columns by name.

        Raises:
            ValueError: names the line and the column of a cell that must be a finite number.
        """
        parts: list[NDArray[np.float64]] = []
        for name in self.features:
            cells = [cells[indices[name]] for _, cells in lines]
            if name not in self.categories:
                parts.append(_numbers(path, name, [number for number, _ in lines], cells)[:, None])
                continue
            hot = np.array(cells)[:, None] == np.array(self.categories[name])
            unknown = [cell for cell, known in zip(cells, hot.any(1).tolist(), strict=True) if not known]
            if unknown:
                warnings.warn(
                    f"{len(unknown)} rows of {path} have a value of {name!r} that no labelled row has, such as "
                    f"{unknown[0]!r}; they count as none of the known ones",
                    stacklevel=2,
                )
            parts.append(hot.astype(np.float64))
        return np.concatenate(parts, axis=1)

    def summary(self) -> str:
        """The categories and identifiers as text; empty without."""
        categories = ", ".join(f"{name} ({len(values)})" for name, values in self.categories.items())
        texts = [f"categories: {categories}"] * bool(categories)
        texts += [f"not features, repeated in predictions: {', '.join(self.ids)}"] * bool(self.ids)
        return "; ".join(texts)

    def record(self) -> dict[str, Any]:
        """As plain values."""
        categories = {name: list(values) for name, values in self.categories.items()}
        return {"features": list(self.features), "categories": categories, "ids": list(self.ids), "label": self.label}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> TableColumns:
        """From the content of `record`."""
        categories = {name: tuple(values) for name, values in record["categories"].items()}
        return cls(tuple(record["features"]), categories, tuple(record["ids"]), record["label"])


def find_columns(
    path: Path, lines: Sequence[Line], used: Mapping[str, int], label: str | None, ids: Sequence[str]
) -> TableColumns:
    """Tell the columns of a table apart.

    A column is text if fewer than half of its cells are numbers. It identifies rows if it is named in ``ids``; or if
    its cells all differ, and it is called id, ..._id, ...Id, index, file or path, or is text of ten rows or more.

    Args:
        path: of the table, for messages.
        lines: its rows.
        used: positions of the columns that are not ignored, by name.
        label: the column of labels.
        ids: columns that are identifiers.

    Raises:
        ValueError: an identifier is not there, or a column of text has too many values.
    """
    for name in ids:
        check_column(path, tuple(used), name)
        if name == label:
            raise ValueError(f"the column of labels of {path} must not identify rows, got {name!r} for both")
    features: list[str] = []
    categories: dict[str, tuple[str, ...]] = {}
    found = list(ids)
    labelled = [cells for _, cells in lines if label is None or cells[used[label]]] or [cells for _, cells in lines]
    for name, index in used.items():
        if name == label or name in ids:
            continue
        cells = [cells[index] for _, cells in lines]
        text, distinct = _is_text(cells), len(set(cells)) == len(cells) > 1
        if distinct and (_ID_NAME.search(name) or _CAMEL_ID.search(name) or (text and len(cells) >= MIN_DISTINCT)):
            found.append(name)
            continue
        features.append(name)
        if text:
            categories[name] = tuple(sorted({cells[index] for cells in labelled}))
            if len(categories[name]) > MAX_CATEGORIES:
                raise ValueError(
                    f"{name!r} of {path} must be numbers or at most {MAX_CATEGORIES} different texts, got "
                    f"{len(categories[name])}, such as {categories[name][-1]!r}; --id keeps the column beside the "
                    "predictions, --ignore leaves it out"
                )
    return TableColumns(tuple(features), categories, tuple(found), label)


def _is_text(cells: Sequence[str]) -> bool:
    given = [cell for cell in cells if cell]
    # A decimal comma, or an underscore between digits, is a mistake in a number.
    return 2 * sum(is_number(cell.replace(",", ".", 1).replace("_", "")) for cell in given) < len(given)


def _numbers(path: Path, name: str, line_numbers: Sequence[int], cells: Sequence[str]) -> NDArray[np.float64]:
    values = np.array([float(cell) if is_number(cell) else np.nan for cell in cells])
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        cell = cells[bad[0]]
        hint = "write decimals with a point" if "," in cell else "--ignore leaves a column out"
        raise ValueError(f"{name!r} in line {line_numbers[bad[0]]} of {path} must be a number, got {cell!r}; {hint}")
    return values


def check_column(path: Path, columns: Sequence[str], name: str) -> None:
    """Raise a ValueError unless a table has a column."""
    if name not in columns:
        hint = did_you_mean(name, columns) or f"; it has {list_columns(columns)}"
        raise ValueError(f"{path} has no column {name!r}{hint}")


def list_columns(columns: Sequence[str] | Mapping[str, int]) -> str:
    """The names of columns as text, of many the first."""
    names = list(columns)
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
