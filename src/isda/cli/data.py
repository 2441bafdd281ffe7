"""The command `isda data`: which data sets there are, where they are looked for, and what they look like."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isda.cli.options import JsonFile

if TYPE_CHECKING:
    from isda.data.known import KnownSet


def data(
    name: str | None = None,
    /,
    *,
    data_root: Path | None = None,
    show: Path | None = None,
    json: JsonFile = None,
) -> None:
    """List the data sets and where each is looked for; with a name, load that one and describe it.

    Args:
        name: a data set to load, or a folder or .npz file.
        data_root: the folder of data sets; by default the environment's ISDA_DATA, else ./data.
        show: draw a contact sheet of the named data set into this image file.
        json: also write the table to this file as JSON; "-" writes JSON to the standard output and no table.
    """
    from isda.cli.output import show as show_record
    from isda.data.archives import data_root as find_root

    if show is not None and name is None:
        raise ValueError("show needs the name of a data set, as in `isda data digits --show digits.png`")
    root = find_root(data_root)
    rows = _describe_loaded(name, root, show) if name else _describe_all(root)
    record = {"root": str(root), "sets": rows}
    show_record(record, json, lambda: _print_rows(rows, root, detailed=name is not None))


def _describe_loaded(name: str, root: Path, show: Path | None) -> list[dict[str, Any]]:
    from isda.data.contact_sheet import write_contact_sheet
    from isda.data.loading import load

    loaded = load(name, root)
    if show is not None:
        write_contact_sheet(loaded, show)
    per_class = loaded.y_train.bincount(minlength=loaded.num_classes).tolist()
    return [
        {
            "name": loaded.name,
            "train": len(loaded.y_train),
            "test": len(loaded.y_test),
            "classes": loaded.num_classes,
            "channels": loaded.channels,
            "image_size": loaded.image_size,
            "found": True,
            "source": loaded.source,
            "class_names": list(loaded.classes),
            "train_per_class": per_class,
            "mean": list(loaded.mean),
            "std": list(loaded.std),
        }
    ]


def _describe_all(root: Path) -> list[dict[str, Any]]:
    from isda.data.known import KNOWN

    rows = [_describe_known(known, root) for known in KNOWN.values()]
    return rows + [_describe_npz(path) for path in sorted(root.glob("*.npz")) if path.stem not in KNOWN]


def _describe_known(known: KnownSet, root: Path) -> dict[str, Any]:
    archive = root / f"{known.name}.npz"
    if archive.is_file():
        return _describe_npz(archive)
    located = known.locate(root)
    return {
        "name": known.name,
        "train": known.train,
        "test": known.test,
        "classes": known.classes,
        "channels": known.channels,
        "image_size": (known.size, known.size) if known.size else None,
        "found": located is not None,
        "source": (", ".join(map(str, located[1])) or "scikit-learn") if located else None,
        "looked_in": [str(archive), *map(str, known.places(root))],
        "wanted": None if located else known.wanted(root),
    }


def _describe_npz(path: Path) -> dict[str, Any]:
    from isda.data.npz import npz_contents

    row: dict[str, Any] = {"name": path.stem, "source": str(path), "looked_in": [str(path)]}
    try:
        return row | npz_contents(path)._asdict() | {"found": True, "wanted": None}
    except ValueError as error:
        # One broken file must not hide the others from the list.
        return row | {"found": False, "wanted": str(error)}


def _print_rows(rows: list[dict[str, Any]], root: Path, detailed: bool) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    table = Table(title=escape(f"Data sets under {root}"), box=SIMPLE_HEAD, title_justify="left", padding=(0, 1, 0, 0))
    for heading in ("name", "training", "test", "classes", "image"):
        table.add_column(heading, justify="left" if heading == "name" else "right", no_wrap=True)
    table.add_column("found in", overflow="fold")
    for row in rows:
        size = row.get("image_size")
        shape = "x".join(map(str, (row["channels"], *size))) if size else "various"
        counts = (f"{row[key]:,}" if key in row else "?" for key in ("train", "test", "classes"))
        where = [row["source"]] if row["found"] else ["not found, looked in", *row["looked_in"]]
        table.add_row(escape(row["name"]), *counts, shape, escape("\n".join(_short(place, root) for place in where)))
    console.print(table)
    if not detailed:
        console.print("`isda data NAME` loads a set, or says exactly which files to put where.", highlight=False)
    if detailed:
        for row in rows:
            _print_details(console, row)


def _short(place: str, root: Path) -> str:
    """Paths below the root without it, as the table's title names the root."""
    return place.replace(f"{root}{os.sep}", "") if place != str(root) else "the root itself"


def _print_details(console: Any, row: dict[str, Any]) -> None:
    mean, std = (", ".join(f"{value:.4f}" for value in row[key]) for key in ("mean", "std"))
    console.print(f"mean {mean}; standard deviation {std} (pixels in 0..1)", highlight=False)
    named = zip(row["class_names"], row["train_per_class"], strict=True)
    console.print(", ".join(f"{name} {count:,}" for name, count in named), highlight=False, markup=False)
