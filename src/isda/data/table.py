"""The data sets as rows and as a table for the terminal: what there is, where it was found, what it looks like."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from isda.data.catalogue import CATALOGUE, NamedSet
from isda.data.dataset import DataSet
from isda.data.readers.npz import npz_contents
from isda.plain_text import harmless

__all__ = ["Row", "data_set_row", "data_set_rows", "details", "table"]

Row = dict[str, Any]


def data_set_rows(root: Path) -> list[Row]:
    """One row for each named set, found or not, and for each other .npz file under the root; no image is read."""
    rows = [_named_row(named, root) for named in CATALOGUE.values()]
    return rows + [_npz_row(path) for path in sorted(root.glob("*.npz")) if path.stem not in CATALOGUE]


def data_set_row(data: DataSet) -> Row:
    """The row of a loaded set, which knows its classes and pixel statistics too."""
    return {
        "name": data.name,
        "train": len(data.y_train),
        "test": len(data.y_test),
        "classes": data.num_classes,
        "channels": data.channels,
        "image_size": data.image_size,
        "found": True,
        "source": data.source,
        "class_names": list(data.classes),
        "train_per_class": data.y_train.bincount(minlength=data.num_classes).tolist(),
        "mean": list(data.mean),
        "std": list(data.std),
    }


def table(rows: Sequence[Row], root: Path) -> Table:
    """The rows, with paths relative to the root, which the title names."""
    table = Table(
        title=escape(harmless(f"Data sets under {root}")), box=SIMPLE_HEAD, title_justify="left", padding=(0, 1, 0, 0)
    )
    for heading in ("name", "training", "test", "classes", "image"):
        table.add_column(heading, justify="left" if heading == "name" else "right", no_wrap=True)
    table.add_column("found in", overflow="fold")
    for row in rows:
        size = row.get("image_size")
        shape = "x".join(map(str, (row["channels"], *size))) if size else "various"
        counts = (f"{row[key]:,}" if key in row else "?" for key in ("train", "test", "classes"))
        where = [row["source"]] if row["found"] else ["not found, looked in", *row["looked_in"]]
        places = "\n".join(_short(place, root) for place in where)
        table.add_row(escape(harmless(row["name"])), *counts, shape, escape(harmless(places)))
    return table


def details(row: Row) -> str:
    """Two lines about a loaded set: its pixel statistics, and its classes with their numbers of training images."""
    mean, std = (", ".join(f"{value:.4f}" for value in row[key]) for key in ("mean", "std"))
    classes = zip(row["class_names"], row["train_per_class"], strict=True)
    counts = ", ".join(f"{name} {count:,}" for name, count in classes)
    return f"mean {mean}; standard deviation {std} (pixels in 0..1)\n{counts}"


def _named_row(named: NamedSet, root: Path) -> Row:
    archive = root / f"{named.name}.npz"
    if archive.is_file():
        return _npz_row(archive)
    located = named.locate(root)
    return {
        "name": named.name,
        "train": named.train,
        "test": named.test,
        "classes": named.classes,
        "channels": named.channels,
        "image_size": (named.size, named.size) if named.size else None,
        "found": located is not None,
        "source": (", ".join(map(str, located[1])) or "scikit-learn") if located else None,
        "looked_in": [str(archive), *map(str, named.places(root))],
        "wanted": None if located else named.wanted(root),
    }


def _npz_row(path: Path) -> Row:
    row: Row = {"name": path.stem, "source": str(path), "looked_in": [str(path)]}
    try:
        return row | npz_contents(path)._asdict() | {"found": True, "wanted": None}
    except ValueError as error:
        # One broken file must not hide the others from the list.
        return row | {"found": False, "wanted": str(error)}


def _short(place: str, root: Path) -> str:
    """Paths below the root without it, as the table's title names the root."""
    return place.replace(f"{root}{os.sep}", "") if place != str(root) else "the root itself"
