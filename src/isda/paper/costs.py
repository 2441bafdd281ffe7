"""The cost columns of the paper's tables, as printed (costs.csv), and what a printed number says.

Tables "ImageNet Results" and "different_networks" (parameters), "ComputationalCost" (multiply-adds, which the paper
calls FLOPs, and additional cost) and "Training_hp" with the text beside it (batch size).
"""

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

__all__ = ["PaperCosts", "Printed", "paper_costs"]

UNITS = {"M": 1e6, "G": 1e9, "%": 1.0}


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
    """The paper's row of one network: its batch size, and its printed numbers by column of costs.csv."""

    batch_size: int
    printed: dict[str, Printed]


@cache
def paper_costs() -> dict[str, PaperCosts]:
    """The paper's cost columns by network, in the order of its tables.

    Example:
        >>> paper_costs()["resnet-110"].printed["multiply_adds"].text
        '254.20M'
    """
    rows = {}
    with files("isda.paper").joinpath("costs.csv").open(encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            name, batch_size = row.pop("network"), int(row.pop("batch_size"))
            rows[name] = PaperCosts(batch_size, {column: Printed(text) for column, text in row.items() if text})
    return rows
