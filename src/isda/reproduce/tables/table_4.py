"""Table 4: ISDA on top of Cutout, RandAugment and AutoAugment."""

from __future__ import annotations

from isda.reproduce.experiment import Cell, TableExperiment
from isda.reproduce.tables.cifar import DATA, NETWORKS
from isda.reproduce.trainings import classifier

__all__ = ["Table4"]

AUGMENTATIONS = {"Cutout": "cutout", "RandAugment": "randaugment", "AutoAugment": "autoaugment"}


class Table4(TableExperiment):
    """Three networks, three augmentations, both CIFAR sets."""

    name = "table-4"

    def cells(self) -> list[Cell]:
        """Test errors of what the paper has."""
        found = []
        for row in self.printed.rows:
            for title, data in DATA.items():
                for named, augment in AUGMENTATIONS.items():
                    basic, isda = (
                        classifier(data, NETWORKS[row], method, augment=augment) for method in ("cross-entropy", "isda")
                    )
                    found.append(Cell(row=row, column=f"{title} {named}", training=basic))
                    found.append(Cell(row=row, column=f"{title} {named} + ISDA", training=isda, base=basic))
        printed = {(cell.row, cell.column) for cell in self.printed.cells if cell.value is not None}
        return [cell for cell in found if (cell.row, cell.column) in printed]
