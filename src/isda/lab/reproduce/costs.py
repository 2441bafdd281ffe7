"""Parameters, multiply-adds and training time of every network beside the paper's cost columns (`isda networks`).

Tables 1 and 2 (parameters), 1 and 3 (multiply-adds, which the paper calls FLOPs, and additional cost). For times,
steps with cross-entropy and with ISDA alternate on the same network and batch; reported is the median ratio.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache

import torch
import torch.nn.functional as F
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text
from torch import Tensor

from isda import ISDALoss
from isda.lab.devices import on_host
from isda.lab.networks import Network, create
from isda.lab.networks.cost import additional_multiply_adds, count_multiply_adds, count_parameters
from isda.lab.networks.registry import CIFAR, names
from isda.lab.reproduce.printed_tables import PaperCell, paper_table
from isda.lab.tasks.classification.settings import recipe_for

CIFAR_NETWORKS = {
    "ResNet-32": "resnet-32",
    "ResNet-110": "resnet-110",
    "SE-ResNet-110": "se-resnet-110",
    "Wide-ResNet-16-8": "wide-resnet-16-8",
    "Wide-ResNet-28-10": "wide-resnet-28-10",
    "ResNeXt-29, 8x64d": "resnext-29-8x64d",
    "DenseNet-BC-100-12": "densenet-bc-100-12",
    "Shake-Shake (26, 2x32d)": "shake-shake-26-2x32d",
    "Shake-Shake (26, 2x112d)": "shake-shake-26-2x112d",
}
"""Rows of Tables 2 and 3, and the names of their networks."""
IMAGENET_NETWORKS = {
    "ResNet-50": "resnet-50",
    "ResNet-101": "resnet-101",
    "ResNet-152": "resnet-152",
    "DenseNet-BC-121": "densenet-121",
    "DenseNet-BC-265": "densenet-265",
    "ResNeXt-50, 32x4d": "resnext-50-32x4d",
    "ResNeXt-101, 32x8d": "resnext-101-32x8d",
}
"""Rows of Table 1, and the names of their networks."""

COST_COLUMNS = {
    "table-1": {
        "parameters": "parameters",
        "additional cost (theoretical)": "additional_imagenet_relative",
        "additional cost (wall time)": "additional_imagenet_wall_time",
    },
    "table-2": {"parameters": "parameters"},
    "table-3": {
        "standard FLOPs": "multiply_adds",
        "CIFAR-10 additional cost (absolute)": "additional_cifar10_absolute",
        "CIFAR-10 additional cost (relative)": "additional_cifar10_relative",
        "CIFAR-10 additional cost (wall time)": "additional_cifar10_wall_time",
        "CIFAR-100 additional cost (absolute)": "additional_cifar100_absolute",
        "CIFAR-100 additional cost (relative)": "additional_cifar100_relative",
        "CIFAR-100 additional cost (wall time)": "additional_cifar100_wall_time",
    },
}
"""The cost columns of each table, and the keys of their cells here."""


@cache
def paper_costs() -> dict[str, dict[str, PaperCell]]:
    """The paper's cost columns by network and key, in the order of its tables.

    Example:
        >>> paper_costs()["resnet-110"]["multiply_adds"].printed
        '254.20M'
    """
    costs = {}
    for networks, tables in ((CIFAR_NETWORKS, ("table-2", "table-3")), (IMAGENET_NETWORKS, ("table-1",))):
        columns = [(paper_table(table), column, key) for table in tables for column, key in COST_COLUMNS[table].items()]
        for row, name in networks.items():
            cells = {key: table.cell(row, column) for table, column, key in columns}
            costs[name] = {key: cell for key, cell in cells.items() if cell is not None}
    return costs


# For networks that the paper's tables do not list: the batch size of most of its CIFAR runs.
DEFAULT_BATCH_SIZE = 128
CIFAR_CLASSES, IMAGENET_CLASSES = 100, 1000
"""What networks are counted with."""

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
"""Suffixes of the keys of percentages."""


@dataclass(frozen=True)
class CostCell:
    """Our number (relative costs in percent) and the printed one, if any."""

    ours: float
    paper: PaperCell | None

    @property
    def deviation(self) -> float | None:
        """Deviation of ours in percent of the printed number."""
        printed = None if self.paper is None else self.paper.value
        return None if printed is None else 100 * (self.ours - printed) / printed


@dataclass(frozen=True)
class CostRow:
    """The costs of one network; ``cells`` by the keys of ``HEADINGS`` that apply to it."""

    name: str
    dataset: str
    input_shape: tuple[int, int, int]
    num_classes: int
    batch_size: int
    feature_dim: int
    cells: dict[str, CostCell]


@cache
def cost_rows() -> tuple[CostRow, ...]:
    """The costs of every named network, counted on shapes alone, once per process.

    CIFAR networks are counted with 100 classes and full covariances, ImageNet networks with 1000 classes and diagonal
    covariances. The paper prints one column for both CIFAR sets; 100 classes come nearer to it than 10.
    """
    return tuple(_cost_row(name) for name in names())


def _cost_row(name: str) -> CostRow:
    small = name in CIFAR
    input_shape, num_classes = ((3, 32, 32), CIFAR_CLASSES) if small else ((3, 224, 224), IMAGENET_CLASSES)
    printed = paper_costs().get(name, {})
    batch_size = recipe_for(name)["batch_size"] if printed else DEFAULT_BATCH_SIZE
    with torch.device("meta"):
        network = create(name, num_classes=num_classes)
    multiply_adds = count_multiply_adds(network, input_shape)
    ours: dict[str, float] = {"parameters": count_parameters(network), "multiply_adds": multiply_adds}
    for dataset, classes in (("cifar10", 10), ("cifar100", 100)) if small else (("imagenet", 1000),):
        added = additional_multiply_adds(network.feature_dim, classes, batch_size, "full" if small else "diagonal")
        ours[f"additional_{dataset}_absolute"] = added
        ours[f"additional_{dataset}_relative"] = 100 * added / multiply_adds
    return CostRow(
        name=name,
        dataset="cifar" if small else "imagenet",
        input_shape=input_shape,
        num_classes=num_classes,
        batch_size=batch_size,
        feature_dim=network.feature_dim,
        cells={key: CostCell(value, printed.get(key)) for key, value in ours.items()},
    )


def cost_record(row: CostRow) -> dict[str, object]:
    """One row as a flat record; each cell becomes ``key``, ``key_paper`` and ``key_deviation_percent``, or None."""
    flat: dict[str, object] = {field.name: getattr(row, field.name) for field in fields(row) if field.name != "cells"}
    flat["input_shape"] = list(row.input_shape)
    for key, cell in row.cells.items():
        flat[key] = cell.ours
        flat[f"{key}_paper"] = None if cell.paper is None else cell.paper.value
        flat[f"{key}_deviation_percent"] = cell.deviation
    return flat


def cost_tables(rows: Sequence[CostRow]) -> list[Table]:
    """One table for CIFAR networks and one for ImageNet networks; under our number the paper's and the deviation."""
    titles = {"cifar": "CIFAR: 32x32 images, 100 classes", "imagenet": "ImageNet: 224x224 images, 1000 classes"}
    parts = {title: [row for row in rows if row.dataset == dataset] for dataset, title in titles.items()}
    return [_table(title, part) for title, part in parts.items() if part]


def _table(title: str, rows: Sequence[CostRow]) -> Table:
    table = Table(title=title, caption="second lines: what the paper prints, our deviation", box=SIMPLE_HEAD)
    table.add_column("network", no_wrap=True)
    table.add_column("features", justify="right")
    for key in rows[0].cells:
        table.add_column(HEADINGS[key], justify="right")
    for row in rows:
        cells = (_cell_text(key, cell) for key, cell in row.cells.items())
        table.add_row(Text(row.name), str(row.feature_dim), *cells)
    return table


def _cell_text(key: str, cell: CostCell) -> Text:
    text = Text(f"{cell.ours:.3f}%" if key.endswith(PERCENT) else _readable(cell.ours))
    if cell.paper is not None:
        # Times of another machine are not comparable.
        deviation = "" if key.endswith("_wall_time") else f" {cell.deviation:+.1f}%"
        text.append(f"\n{cell.paper.printed}{deviation}", style="dim")
    return text


def _readable(count: float) -> str:
    return f"{count / 1e9:.2f}G" if count >= 1e9 else f"{count / 1e6:.2f}M"


TIMED_DATA = {"cifar": (("cifar10", 10), ("cifar100", 100)), "imagenet": (("imagenet", 1000),)}
WARM_UP = 1
"""Rounds that are not counted: they allocate memory and choose algorithms."""


def with_times(row: CostRow, device: torch.device, steps: int = 5, batch_size: int | None = None) -> CostRow:
    """The row with a cell for each data set: the time that ISDA adds to a training step, see `additional_time`."""
    printed = paper_costs().get(row.name, {})
    cells = dict(row.cells)
    for data, classes in TIMED_DATA[row.dataset]:
        key = f"additional_{data}_wall_time"
        network = create(row.name, num_classes=classes).to(device)
        size = batch_size or row.batch_size
        covariance = "full" if row.dataset == "cifar" else "diagonal"
        added = additional_time(network, row.input_shape, size, device, steps, covariance)
        cells[key] = CostCell(added, printed.get(key))
    return replace(row, batch_size=batch_size or row.batch_size, cells=cells)


def additional_time(
    network: Network,
    input_shape: tuple[int, int, int],
    batch_size: int,
    device: torch.device,
    steps: int = 5,
    covariance: str = "full",
) -> float:
    """The time that ISDA (published bound) adds to a training step of a network, in percent of the step without.

    Args:
        network: on the device; its weights are changed.
        input_shape: (C, H, W).
        batch_size: N.
        device: to measure on.
        steps: rounds that are counted.
        covariance: the model of ISDA.
    """
    classes, dim = network.classifier.weight.shape
    optimiser = torch.optim.SGD(network.parameters(), lr=1e-4, momentum=0.9)
    criterion = ISDALoss(classes, dim, 0.5, total_steps=1000, covariance=covariance).to(device)
    images = torch.randn(batch_size, *input_shape, device=device)
    targets = torch.randint(classes, (batch_size,), device=device)

    def plain() -> Tensor:
        return F.cross_entropy(network(images), targets)

    def semantic() -> Tensor:
        features = network.features(images)
        head = network.classifier
        loss: Tensor = criterion(head(features), targets, features=features, weight=head.weight)
        return loss

    def seconds(loss: Callable[[], Tensor]) -> float:
        _wait(device)
        started = time.perf_counter()
        loss().backward()
        optimiser.step()
        optimiser.zero_grad()
        _wait(device)
        return time.perf_counter() - started

    network.train()
    rounds = [(seconds(plain), seconds(semantic)) for _ in range(WARM_UP + steps)]
    ratios = [ours / base for base, ours in rounds]
    return 100 * (statistics.median(ratios[WARM_UP:]) - 1)


def _wait(device: torch.device) -> None:
    if not on_host(device):
        torch.get_device_module(device).synchronize(device)
