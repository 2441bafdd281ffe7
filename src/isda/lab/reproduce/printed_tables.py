"""The numbers of the paper's tables as printed (paper_tables/*.csv), each with its position in the text.

What the paper omits stays "-"; values without a deviation have none; values printed twice are kept twice.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from isda.lab.choices import check_choice

CONTENTS = {
    "table-1": ("ImageNet Results", "Top-1 and top-5 error on ImageNet, with and without ISDA, and what ISDA costs."),
    "table-2": ("different_networks", "Test error of nine networks on CIFAR-10 and CIFAR-100, with and without ISDA."),
    "table-3": ("ComputationalCost", "What ISDA adds to a training step on CIFAR, in FLOPs and in time."),
    "table-4": ("complementary_result", "Test error with Cutout, RandAugment and AutoAugment, alone and with ISDA."),
    "table-5": ("Tab02", "Test error of ISDA beside robust losses and generated training images."),
    "table-6": (
        "semi-supervised",
        "Test error of semi-supervised methods at six numbers of labels, alone and with ISDA.",
    ),
    "table-7": ("Segmentation", "Mean IoU of PSPNet and DeepLab-v3 (ResNet-101) on Cityscapes, with and without ISDA."),
    "table-8": ("Tab05", "Test error of Wide-ResNet-28-10 with parts of ISDA replaced."),
    "table-9": ("Training_hp", "How the networks are trained on CIFAR."),
    "table-11": ("Detection Results", "Box AP on COCO of detectors whose backbone was trained with and without ISDA."),
    "table-12": ("InstanceSeg", "Mask AP on COCO of Mask R-CNN whose backbone was trained with and without ISDA."),
}
"""The label of each table in the paper's LaTeX, and what it shows. Table 10 is a network, not numbers: CNN-13."""

TABLES = tuple(CONTENTS)
"""The tables there are, in the paper's numbering."""

UNITS = {"": 1.0, "%": 1.0, "th": 1.0, "M": 1e6, "G": 1e9}
"""What may follow a printed number, and what it multiplies the number by."""
PRINTED = re.compile(r"\(?↑?(\d+(?:\.\d+)?(?:e-\d+)?)(?: ± (\d+\.\d+))?(%|th|M|G|)\)?")


@dataclass(frozen=True)
class PaperCell:
    """One printed number and where it stands.

    The source is the label of the LaTeX table, the row below its heading and the column, both from 1, and which number
    of that cell it is where there are several.

    Example:
        >>> cell = paper_table("table-2").cell("Wide-ResNet-28-10", "CIFAR-100 basic")
        >>> cell.printed, cell.value, cell.deviation, cell.source
        ('18.53 ± 0.07%', 18.53, 0.07, 'different_networks: row 5, column 5')
        >>> paper_table("table-2").cell("Wide-ResNet-28-10", "parameters").value
        36500000.0
    """

    row: str
    column: str
    printed: str
    source: str

    @property
    def value(self) -> float | None:
        """The number: in percent where it is a percentage; None where the paper prints "-" or words."""
        match = PRINTED.fullmatch(self.printed)
        return float(match[1]) * UNITS[match[3]] if match else None

    @property
    def deviation(self) -> float | None:
        """The standard deviation behind the ±, if there is one."""
        match = PRINTED.fullmatch(self.printed)
        return float(match[2]) if match and match[2] else None


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper: its name here, a sentence on what it shows, its label in the LaTeX, and its cells."""

    name: str
    title: str
    label: str
    cells: tuple[PaperCell, ...]

    @property
    def rows(self) -> tuple[str, ...]:
        """The names of the rows, from top to bottom."""
        return tuple(dict.fromkeys(cell.row for cell in self.cells))

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns, in the order in which they are first used."""
        return tuple(dict.fromkeys(cell.column for cell in self.cells))

    def cell(self, row: str, column: str) -> PaperCell | None:
        """The cell of a row and a column; None where the table has none."""
        return next((cell for cell in self.cells if (cell.row, cell.column) == (row, column)), None)


@cache
def paper_table(name: str) -> PaperTable:
    """A table of the paper by its name, one of ``TABLES``.

    Example:
        >>> paper_table("table-8").rows
        ('Basic', 'Identity matrix', 'Diagonal matrix', 'Single covariance matrix', 'Constant lambda_0', 'ISDA')
    """
    label, title = CONTENTS[check_choice("table", name, TABLES)]
    text = files("isda.lab.reproduce").joinpath(f"paper_tables/{name}.csv").read_text(encoding="utf-8")
    return PaperTable(name, title, label, tuple(PaperCell(**row) for row in csv.DictReader(text.splitlines())))
