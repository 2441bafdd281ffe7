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
from isda.lab.data.readers.npz import npz_contents
from isda.lab.files import atomic_write
from isda.lab.text import escape_control_characters

if TYPE_CHECKING:
    from rich.table import Table

DataSetRow = dict[str, Any]


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

    table = Table(
        title=escape(escape_control_characters(f"Data sets under {root}")),
        box=SIMPLE_HEAD,
        title_justify="left",
        padding=(0, 1, 0, 0),
    )
    for heading in ("name", "training", "test", "classes", "image"):
        table.add_column(heading, justify="left" if heading == "name" else "right", no_wrap=True)
    table.add_column("found in", overflow="fold")
    for row in rows:
        size = row.get("image_size")
        shape = "x".join(map(str, (row["channels"], *size))) if size else "various"
        counts = (f"{row[key]:,}" if key in row else "?" for key in ("train", "test", "classes"))
        where = [row["source"]] if row["found"] else ["not found, looked in", *row["looked_in"]]
        # Relative to the root, which the title names.
        paths = [path.replace(f"{root}{os.sep}", "") if path != str(root) else "the root itself" for path in where]
        name, locations = (escape(escape_control_characters(text)) for text in (row["name"], "\n".join(paths)))
        table.add_row(name, *counts, shape, locations)
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
        "source": (", ".join(map(str, located[1])) or "scikit-learn") if located else None,
        "looked_in": [str(archive), *map(str, named.search_folders(root))],
        "wanted": None if located else named.instructions(root),
    }


def _npz_row(path: Path) -> DataSetRow:
    row: DataSetRow = {"name": path.stem, "source": str(path), "looked_in": [str(path)]}
    try:
        return row | npz_contents(path)._asdict() | {"found": True, "wanted": None}
    except ValueError as error:
        # One broken file must not hide the others from the list.
        return row | {"found": False, "wanted": str(error)}


SHEET_COLUMNS = 12
MAX_SHEET_ROWS = 100
SHEET_GAP = 2
SMALLEST_CELL, LARGEST_CELL = 32, 64


def contact_sheet(data: DataSet, columns: int = SHEET_COLUMNS) -> tuple[Tensor, list[str]]:
    """The first `columns` training images of each class as one uint8 image (3, H, W), and the name of each row.

    Of more than 100 classes, 100 evenly spaced ones are shown.
    """
    step = max(1, data.num_classes / MAX_SHEET_ROWS)
    shown = [int(i * step) for i in range(min(data.num_classes, MAX_SHEET_ROWS))]
    rows = []
    for label in shown:
        members = (data.y_train == label).nonzero().flatten()[:columns].tolist()
        rows.append([_cell(data.x_train[i]) for i in members])
    # Images of a folder may differ in size.
    height, width = (max(cell.shape[side] for row in rows for cell in row) for side in (1, 2))
    sheet = torch.full(
        (3, len(rows) * (height + SHEET_GAP) + SHEET_GAP, columns * (width + SHEET_GAP) + SHEET_GAP),
        255,
        dtype=torch.uint8,
    )
    for i, row in enumerate(rows):
        for j, cell in enumerate(row):
            top, left = SHEET_GAP + i * (height + SHEET_GAP), SHEET_GAP + j * (width + SHEET_GAP)
            sheet[:, top : top + cell.shape[1], left : left + cell.shape[2]] = cell
    return sheet, [data.classes[label] for label in shown]


def write_contact_sheet(data: DataSet, path: Path) -> None:
    """Draw the contact sheet with class names into an image file."""
    from matplotlib.figure import Figure

    sheet, names = contact_sheet(data)
    _, height, width = sheet.shape
    dpi = 100
    figure = Figure(figsize=(width / dpi, height / dpi), dpi=dpi)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.imshow(sheet.permute(1, 2, 0).numpy(), interpolation="nearest", aspect="auto")
    row = (height - SHEET_GAP) / len(names)
    axes.set_yticks(
        [SHEET_GAP / 2 + row * (i + 0.5) for i in range(len(names))], labels=names, fontsize=9, parse_math=False
    )
    axes.set_xticks([])
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_title(
        f"{data.name}: {len(data.y_train):,} training images, {data.num_classes} classes", fontsize=10, parse_math=False
    )
    with atomic_write(path) as unfinished:
        figure.savefig(unfinished, format=path.suffix[1:] or "png", bbox_inches="tight", pad_inches=0.1)


def _cell(image: Tensor) -> Tensor:
    """One image as RGB: small ones enlarged by a whole factor, large ones cropped to a square and reduced."""
    if image.shape[0] not in (1, 3):
        image = image[:3] if image.shape[0] > 3 else image[:1]
    image = image.expand(3, -1, -1)
    height, width = image.shape[1:]
    longest = max(height, width)
    if longest <= LARGEST_CELL:
        factor = max(1, round(SMALLEST_CELL / longest))
        return image.repeat_interleave(factor, 1).repeat_interleave(factor, 2)
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = image[None, :, top : top + side, left : left + side].float()
    small = F.interpolate(square, (LARGEST_CELL, LARGEST_CELL), mode="bilinear", antialias=True)
    return small[0].round().clamp(0, 255).to(torch.uint8)
