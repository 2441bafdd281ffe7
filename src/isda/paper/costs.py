"""The cost columns of the paper's tables by our names of the networks, and what a printed number says.

Tables 1 and 2 (parameters), 1 and 3 (multiply-adds, which the paper calls FLOPs, and additional cost); the batch size
is that of the recipe (Table 9 and the text below it).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from isda.classification.recipes import recipe_for
from isda.paper.printed_tables import UNITS, paper_table

__all__ = ["CIFAR_NETWORKS", "IMAGENET_NETWORKS", "PaperCosts", "Printed", "paper_costs"]

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
class Printed:
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
    printed: dict[str, Printed]


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
            printed = {key: Printed(cell.printed) for key, cell in cells.items() if cell is not None}
            costs[name] = PaperCosts(recipe_for(name).batch_size, printed)
    return costs
