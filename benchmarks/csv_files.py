"""Tables of figures as csv files with a line of names: read, written whole, or continued as runs are finished."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

__all__ = ["append_csv", "read_csv", "write_csv"]

Row = Iterable[object]


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows, by the names of their columns."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Row]) -> None:
    """A file of these rows."""
    _write(path, "w", [columns, *rows])


def append_csv(path: Path, columns: Sequence[str], rows: Iterable[Row]) -> None:
    """Add rows, and the names of the columns where there is no file yet."""
    _write(path, "a", rows if path.exists() else [columns, *rows])


def _write(path: Path, mode: str, rows: Iterable[Row]) -> None:
    with path.open(mode, newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
