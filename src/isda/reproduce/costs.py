"""Parameters, multiply-adds and training time of every network beside the paper's cost columns (`isda networks`).

Tables 1 and 2 (parameters), 1 and 3 (multiply-adds, which the paper calls FLOPs, and additional cost). For times,
steps with cross-entropy and with ISDA alternate on the same network and batch; reported is the median ratio.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch
import torch.nn.functional as F
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text
from torch import Tensor

from isda._utils.devices import on_host
from isda.losses import ISDALoss
from isda.networks import Network, create
from isda.networks.cost import additional_multiply_adds, count_multiply_adds, count_parameters
from isda.networks.registry import CIFAR, names
from isda.reproduce.printed_tables import UNITS, paper_table
from isda.tasks.classification.settings import recipe_for

# The cost columns of the paper's tables by our names of the networks, and what a printed number says.
#
# Tables 1 and 2 (parameters), 1 and 3 (multiply-adds, which the paper calls FLOPs, and additional cost); the batch size
# is that of the recipe (Table 9 and the text below it).

CIFAR_NETWORKS = {
    "resnet-32": "ResNet-32",
    "resnet-110": "ResNet-110",
    "se-resnet-110": "SE-ResNet-110",
    "wide-resnet-16-8": "Wide-ResNet-16-8",
    "wide-resnet-28-10": "Wide-ResNet-28-10",
    "resnext-29-8x64d": "ResNeXt-29, 8x64d",
    "densenet-bc-100-12": "DenseNet-BC-100-12",
    "shake-shake-26-2x32d": "Shake-Shake (26, 2x32d)",
    "shake-shake-26-2x112d": "Shake-Shake (26, 2x112d)",
}
"""Our names and those of the rows of Tables 2 and 3."""
IMAGENET_NETWORKS = {
    "resnet-50": "ResNet-50",
    "resnet-101": "ResNet-101",
    "resnet-152": "ResNet-152",
    "densenet-121": "DenseNet-BC-121",
    "densenet-265": "DenseNet-BC-265",
    "resnext-50-32x4d": "ResNeXt-50, 32x4d",
    "resnext-101-32x8d": "ResNeXt-101, 32x8d",
}
"""Our names and those of the rows of Table 1."""

CIFAR_COLUMNS = {
    "parameters": ("table-2", "parameters"),
    "multiply_adds": ("table-3", "standard FLOPs"),
    "additional_cifar10_absolute": ("table-3", "CIFAR-10 additional cost (absolute)"),
    "additional_cifar10_relative": ("table-3", "CIFAR-10 additional cost (relative)"),
    "additional_cifar10_wall_time": ("table-3", "CIFAR-10 additional cost (wall time)"),
    "additional_cifar100_absolute": ("table-3", "CIFAR-100 additional cost (absolute)"),
    "additional_cifar100_relative": ("table-3", "CIFAR-100 additional cost (relative)"),
    "additional_cifar100_wall_time": ("table-3", "CIFAR-100 additional cost (wall time)"),
}
IMAGENET_COLUMNS = {
    "parameters": ("table-1", "parameters"),
    "additional_imagenet_relative": ("table-1", "additional cost (theoretical)"),
    "additional_imagenet_wall_time": ("table-1", "additional cost (wall time)"),
}


@dataclass(frozen=True)
class PrintedNumber:
    """A number as a table prints it, e.g. "69.43M" or "0.07%" (percentages keep their unit).

    Example:
        >>> Printed("0.5M").value, Printed("0.5M").half_unit
        (500000.0, 50000.0)
        >>> Printed("0.5M").deviation(475000)
        -5.0
    """

    text: str

    @property
    def value(self) -> float:
        """The number."""
        return float(self.text[:-1]) * UNITS[self.text[-1]]

    @property
    def half_unit(self) -> float:
        """Half a unit of the last printed digit: how far the number may be from what was rounded to it."""
        decimals = len(self.text[:-1].partition(".")[2])
        return 0.5 * 10.0**-decimals * UNITS[self.text[-1]]

    def deviation(self, ours: float) -> float:
        """How far our number is from the printed one, in percent of the printed one."""
        return 100 * (ours - self.value) / self.value


@dataclass(frozen=True)
class PaperCosts:
    """The paper's row of one network: its batch size, and its printed numbers by column."""

    batch_size: int
    printed: dict[str, PrintedNumber]


@cache
def paper_costs() -> dict[str, PaperCosts]:
    """The paper's cost columns by network, in the order of its tables.

    Example:
        >>> paper_costs()["resnet-110"].printed["multiply_adds"].text
        '254.20M'
    """
    costs = {}
    for networks, columns in ((CIFAR_NETWORKS, CIFAR_COLUMNS), (IMAGENET_NETWORKS, IMAGENET_COLUMNS)):
        for name, row in networks.items():
            cells = {key: paper_table(table).cell(row, column) for key, (table, column) in columns.items()}
            printed = {key: PrintedNumber(cell.printed) for key, cell in cells.items() if cell is not None}
            costs[name] = PaperCosts(recipe_for(name)["batch_size"], printed)
    return costs


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
class CostCell:
    """Our number (relative costs in percent) and what the paper prints for it, if it does."""

    ours: float
    paper: PrintedNumber | None

    @property
    def deviation(self) -> float | None:
        """How far ours is from the paper's, in percent of the paper's."""
        return None if self.paper is None else self.paper.deviation(self.ours)


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
        # Seconds of another machine are not to be met.
        deviation = "" if key.endswith("_wall_time") else f" {cell.deviation:+.1f}%"
        text.append(f"\n{cell.paper.text}{deviation}", style="dim")
    return text


def _readable(count: float) -> str:
    return f"{count / 1e9:.2f}G" if count >= 1e9 else f"{count / 1e6:.2f}M"


# How much longer a training step takes with ISDA, measured: the wall-time columns of the paper's Tables 1 and 3.
#
# Steps with cross-entropy and with ISDA take turns on the same network and batch, so that whatever else the machine
# does strikes both alike; the figure is the median of their ratios.

TIMED_DATA = {"cifar": (("cifar10", 10), ("cifar100", 100)), "imagenet": (("imagenet", 1000),)}
WARM_UP = 1
"""Turns that are not counted: the first ones allocate memory and choose algorithms."""


def with_times(row: CostRow, device: torch.device, steps: int = 5, batch_size: int | None = None) -> CostRow:
    """The row with a further cell for each data set: the time that ISDA adds to a training step, in percent.

    Args:
        row: of a network.
        device: where to measure.
        steps: turns that are counted.
        batch_size: instead of the paper's.
    """
    paper = paper_costs().get(row.name)
    cells = dict(row.cells)
    for data, classes in TIMED_DATA[row.dataset]:
        key = f"additional_{data}_wall_time"
        network = create(row.name, num_classes=classes).to(device)
        size = batch_size or row.batch_size
        covariance = "full" if row.dataset == "cifar" else "diagonal"
        added = additional_time(network, row.input_shape, size, device, steps, covariance)
        cells[key] = CostCell(added, paper.printed.get(key) if paper else None)
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
        device: where to measure.
        steps: turns that are counted.
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
    turns = [(seconds(plain), seconds(semantic)) for _ in range(WARM_UP + steps)]
    ratios = [ours / base for base, ours in turns]
    return 100 * (statistics.median(ratios[WARM_UP:]) - 1)


def _wait(device: torch.device) -> None:
    if not on_host(device):
        torch.get_device_module(device).synchronize(device)
