"""Every network's cost beside the paper's columns: as rows, as plain records, and as tables for the terminal."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from isda.networks.cost import additional_multiply_adds, count_multiply_adds, count_parameters
from isda.networks.registry import CIFAR, create, names
from isda.paper.costs import Printed, paper_costs

__all__ = ["Cell", "Row", "cost_rows", "record", "tables"]

# For networks that the paper's tables do not list: the batch size of most of its CIFAR runs.
DEFAULT_BATCH_SIZE = 128

HEADINGS = {
    "parameters": "parameters",
    "multiply_adds": "multiply-adds",
    "additional_cifar10_absolute": "ISDA adds\nC10",
    "additional_cifar10_relative": "relative\nC10",
    "additional_cifar100_absolute": "ISDA adds\nC100",
    "additional_cifar100_relative": "relative\nC100",
    "additional_imagenet_absolute": "ISDA adds\nImageNet",
    "additional_imagenet_relative": "relative\nImageNet",
    "additional_cifar10_wall_time": "time\nC10",
    "additional_cifar100_wall_time": "time\nC100",
    "additional_imagenet_wall_time": "time\nImageNet",
}


PERCENT = ("_relative", "_wall_time")
"""How the keys of percentages end."""


@dataclass(frozen=True)
class Cell:
    """Our number (relative costs in percent) and what the paper prints for it, if it does."""

    ours: float
    paper: Printed | None

    @property
    def deviation(self) -> float | None:
        """How far ours is from the paper's, in percent of the paper's."""
        return None if self.paper is None else self.paper.deviation(self.ours)


@dataclass(frozen=True)
class Row:
    """The costs of one network; ``cells`` by the keys of ``HEADINGS`` that apply to it."""

    name: str
    dataset: str
    input_shape: tuple[int, int, int]
    num_classes: int
    batch_size: int
    feature_dim: int
    cells: dict[str, Cell]


@cache
def cost_rows() -> tuple[Row, ...]:
    """The costs of every named network, counted on shapes alone, once per process.

    CIFAR networks are counted with 100 classes and full covariances, ImageNet networks with 1000 classes and diagonal
    covariances. The paper prints one column for both CIFAR sets; 100 classes come nearer to it than 10.
    """
    return tuple(_cost_row(name) for name in names())


def _cost_row(name: str) -> Row:
    small = name in CIFAR
    input_shape, num_classes = ((3, 32, 32), 100) if small else ((3, 224, 224), 1000)
    paper = paper_costs().get(name)
    printed = paper.printed if paper else {}
    batch_size = paper.batch_size if paper else DEFAULT_BATCH_SIZE
    with torch.device("meta"):
        network = create(name, num_classes=num_classes)
    multiply_adds = count_multiply_adds(network, input_shape)
    ours: dict[str, float] = {"parameters": count_parameters(network), "multiply_adds": multiply_adds}
    for dataset, classes in (("cifar10", 10), ("cifar100", 100)) if small else (("imagenet", 1000),):
        added = additional_multiply_adds(network.feature_dim, classes, batch_size, "full" if small else "diagonal")
        ours[f"additional_{dataset}_absolute"] = added
        ours[f"additional_{dataset}_relative"] = 100 * added / multiply_adds
    return Row(
        name=name,
        dataset="cifar" if small else "imagenet",
        input_shape=input_shape,
        num_classes=num_classes,
        batch_size=batch_size,
        feature_dim=network.feature_dim,
        cells={key: Cell(value, printed.get(key)) for key, value in ours.items()},
    )


def record(row: Row) -> dict[str, object]:
    """One row as a flat record; each cell becomes ``key``, ``key_paper`` and ``key_deviation_percent``, or None."""
    flat: dict[str, object] = {
        "name": row.name,
        "dataset": row.dataset,
        "input_shape": list(row.input_shape),
        "num_classes": row.num_classes,
        "batch_size": row.batch_size,
        "feature_dim": row.feature_dim,
    }
    for key, cell in row.cells.items():
        flat[key] = cell.ours
        flat[f"{key}_paper"] = None if cell.paper is None else cell.paper.value
        flat[f"{key}_deviation_percent"] = cell.deviation
    return flat


def tables(rows: Sequence[Row]) -> list[Table]:
    """One table for CIFAR networks and one for ImageNet networks; under our number the paper's and the deviation."""
    titles = {"cifar": "CIFAR: 32x32 images, 100 classes", "imagenet": "ImageNet: 224x224 images, 1000 classes"}
    parts = {title: [row for row in rows if row.dataset == dataset] for dataset, title in titles.items()}
    return [_table(title, part) for title, part in parts.items() if part]


def _table(title: str, rows: Sequence[Row]) -> Table:
    table = Table(title=title, caption="second lines: what the paper prints, our deviation", box=SIMPLE_HEAD)
    table.add_column("network", no_wrap=True)
    table.add_column("features", justify="right")
    for key in rows[0].cells:
        table.add_column(HEADINGS[key], justify="right")
    for row in rows:
        cells = (_cell_text(key, cell) for key, cell in row.cells.items())
        table.add_row(Text(row.name), str(row.feature_dim), *cells)
    return table


def _cell_text(key: str, cell: Cell) -> Text:
    text = Text(f"{cell.ours:.3f}%" if key.endswith(PERCENT) else _readable(cell.ours))
    if cell.paper is not None:
        # Seconds of another machine are not to be met.
        deviation = "" if key.endswith("_wall_time") else f" {cell.deviation:+.1f}%"
        text.append(f"\n{cell.paper.text}{deviation}", style="dim")
    return text


def _readable(count: float) -> str:
    return f"{count / 1e9:.2f}G" if count >= 1e9 else f"{count / 1e6:.2f}M"
