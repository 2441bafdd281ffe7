"""Table 6: semi-supervised learning."""

from __future__ import annotations

from isda.reproduce.experiment import Cell, TableExperiment
from isda.reproduce.trainings import semi_supervised

__all__ = ["Table6"]

METHODS = {
    "Pi-model": "pi-model",
    "Temp-ensemble": "temporal-ensembling",
    "Mean Teacher": "mean-teacher",
    "VAT": "vat",
}
DATA = {"CIFAR-10": "cifar10", "CIFAR-100": "cifar100", "SVHN": "svhn"}


class Table6(TableExperiment):
    """Four methods with and without ISDA at six numbers of labels."""

    name = "table-6"

    def cells(self) -> list[Cell]:
        """Test errors of what the paper has."""
        found = []
        for column in self.printed.columns:
            title, labels = column.rsplit(" ", 1)
            for row, method in METHODS.items():
                plain, isda = (semi_supervised(DATA[title], name, int(labels)) for name in (method, f"{method}+isda"))
                found.append(Cell(row=row, column=column, training=plain))
                found.append(Cell(row=f"{row} + ISDA", column=column, training=isda, base=plain))
        printed = {(cell.row, cell.column) for cell in self.printed.cells if cell.value is not None}
        return [cell for cell in found if (cell.row, cell.column) in printed]
