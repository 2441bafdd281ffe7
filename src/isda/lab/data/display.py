"""Overview of data sets: a table for the terminal, and a contact sheet of training images."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from isda.lab.data.catalogue import CATALOGUE, NamedDataSet
from isda.lab.data.dataset import DataSet
from isda.lab.data.npz import npz_contents
from isda.lab.files import atomic_write
from isda.lab.text import escape_control_characters

if TYPE_CHECKING:
    from rich.table import Table

DataSetRow = dict[str, Any]
SHEET_COLUMNS = 12
MAX_SHEET_ROWS = 100
SHEET_GAP = 2
CELL = 64
"""Side of a cell of the contact sheet, in pixels."""


def data_set_rows(root: Path) -> list[DataSetRow]:
    """One row for each named set, found or not, and for each other .npz file under the root; no image is read."""
    rows = [_named_row(named, root) for named in CATALOGUE.values()]
    return rows + [_npz_row(path) for path in sorted(root.glob("*.npz")) if path.stem not in CATALOGUE]


def data_set_row(data: DataSet) -> DataSetRow:
    """The row of a loaded set, with its classes and pixel statistics."""
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


def data_set_table(rows: Sequence[DataSetRow], root: Path) -> Table:
    """The rows, with paths relative to the root, which the title names."""
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    title = escape(escape_control_characters(f"Data sets under {root}"))
    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left", padding=(0, 1, 0, 0))
    for heading in ("name", "training", "test", "classes", "image"):
        table.add_column(heading, justify="left" if heading == "name" else "right", no_wrap=True)
    table.add_column("found in", overflow="fold")
    for row in rows:
        size = row.get("image_size")
        shape = "x".join(map(str, (row["channels"], *size))) if size else "various"
        counts = (f"{row[key]:,}" if key in row else "?" for key in ("train", "test", "classes"))
        where = (row["source"] if row["found"] else "not found").replace(f"{root}{os.sep}", "")
        name, location = (escape(escape_control_characters(text)) for text in (row["name"], where))
        table.add_row(name, *counts, shape, location)
    return table


def data_set_details(row: DataSetRow) -> str:
    """Two lines about a loaded set: its pixel statistics, and its classes with their numbers of training images."""
    mean, std = (", ".join(f"{value:.4f}" for value in row[key]) for key in ("mean", "std"))
    classes = zip(row["class_names"], row["train_per_class"], strict=True)
    counts = ", ".join(f"{name} {count:,}" for name, count in classes)
    return f"mean {mean}; standard deviation {std} (pixels in 0..1)\n{counts}"


def _named_row(named: NamedDataSet, root: Path) -> DataSetRow:
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
        "source": (str(located) if named.files else "scikit-learn") if located else None,
        "wanted": None if located else named.instructions(root),
    }


def _npz_row(path: Path) -> DataSetRow:
    row: DataSetRow = {"name": path.stem, "source": str(path)}
    try:
        return row | npz_contents(path) | {"found": True, "wanted": None}
    except ValueError as error:
        # One broken file must not hide the others from the list.
        return row | {"found": False, "wanted": str(error)}


def contact_sheet(data: DataSet, columns: int = SHEET_COLUMNS) -> tuple[Tensor, list[str]]:
    """The first `columns` training images of each class as one uint8 image (3, H, W), and the name of each row.

    Of more than 100 classes, 100 evenly spaced ones are shown.
    """
    from torchvision.utils import make_grid

    step = max(1, data.num_classes / MAX_SHEET_ROWS)
    shown = [int(i * step) for i in range(min(data.num_classes, MAX_SHEET_ROWS))]
    cells = []
    for label in shown:
        members = (data.y_train == label).nonzero().flatten()[:columns].tolist()
        row = [_cell(data.x_train[i]) for i in members]
        cells += row + [torch.full((3, CELL, CELL), 255, dtype=torch.uint8)] * (columns - len(row))
    return make_grid(torch.stack(cells), columns, SHEET_GAP, pad_value=255), [data.classes[label] for label in shown]


def write_contact_sheet(data: DataSet, path: Path) -> None:
    """Draw the contact sheet with class names into an image file."""
    from matplotlib.figure import Figure

    sheet, names = contact_sheet(data)
    _, height, width = sheet.shape
    dpi = 100
    figure = Figure(figsize=(width / dpi, height / dpi), dpi=dpi)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.imshow(sheet.permute(1, 2, 0).numpy(), interpolation="nearest", aspect="auto")
    row = CELL + SHEET_GAP
    middles = [SHEET_GAP + CELL / 2 + row * number for number in range(len(names))]
    axes.set_yticks(middles, labels=names, fontsize=9, parse_math=False)
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.set_frame_on(False)
    axes.set_title(
        f"{data.name}: {len(data.y_train):,} training images, {data.num_classes} classes", fontsize=10, parse_math=False
    )
    with atomic_write(path) as unfinished:
        figure.savefig(unfinished, format=path.suffix[1:] or "png", bbox_inches="tight", pad_inches=0.1)


def _cell(image: Tensor) -> Tensor:
    """One image as RGB of the size of a cell: small ones enlarged by the nearest pixel, large ones reduced."""
    image = (image[:3] if image.shape[0] >= 3 else image[:1]).expand(3, -1, -1)
    side = min(image.shape[1:])
    top, left = ((length - side) // 2 for length in image.shape[1:])
    square = image[None, :, top : top + side, left : left + side].float()
    if side > CELL:
        sized = F.interpolate(square, (CELL, CELL), mode="bilinear", antialias=True)
    else:
        sized = F.interpolate(square, (CELL, CELL), mode="nearest-exact")
    return sized[0].round().clamp(0, 255).to(torch.uint8)
