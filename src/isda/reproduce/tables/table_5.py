"""Table 5: robust losses and generated images beside ISDA."""

from __future__ import annotations

from typing import Any

from isda.reproduce.experiment import Cell, TableExperiment
from isda.reproduce.tables.cifar import DATA, NETWORKS
from isda.reproduce.training import Training
from isda.reproduce.trainings import classifier, generator

__all__ = ["Table5"]

LOSSES = {
    "Large Margin": "large-margin",
    "Disturb Label": "disturb-label",
    "Focal Loss": "focal",
    "Center Loss": "center",
    "Lq Loss": "lq",
    "Label Smoothing": "label-smoothing",
    "DistributionNet": "distribution-net",
}
GENERATORS = {"WGAN": "wgan", "CGAN": "cgan", "ACGAN": "acgan", "infoGAN": "infogan"}
DROPOUT = 0.3
"""Added to ResNet-110; Wide-ResNet-28-10 has it in all of its rows."""


class Table5(TableExperiment):
    """ResNet-110 and Wide-ResNet-28-10 on both CIFAR sets."""

    name = "table-5"
    note = "The rivals have the settings that the paper chose for them, ISDA's strength is chosen on held-out images."

    def cells(self) -> list[Cell]:
        """Test errors of what the paper has."""
        found = []
        for column in self.printed.columns:
            network, data = column.rsplit(" ", 1)
            rows = self._rows(NETWORKS[network], DATA[data])
            base = rows["Basic"]
            found += [
                Cell(row=row, column=column, training=one, base=None if one == base else base)
                for row, one in rows.items()
            ]
        printed = {(cell.row, cell.column) for cell in self.printed.cells if cell.value is not None}
        return [cell for cell in found if (cell.row, cell.column) in printed]

    def _rows(self, network: str, data: str) -> dict[str, Training]:
        wide = network == NETWORKS["Wide-ResNet-28-10"]
        dropout: dict[str, Any] = {} if wide else {"dropout": DROPOUT}
        found: dict[str, Training] = {
            row: classifier(data, network, method, tuned=False) for row, method in LOSSES.items()
        }
        for row, method in GENERATORS.items():
            needs = {"generated": generator(data, method)}
            found[row] = classifier(data, network, "cross-entropy", needs=needs)
        found["Basic"] = classifier(data, network, "cross-entropy")
        found["Basic + Dropout"] = classifier(data, network, "cross-entropy", **dropout)
        found["ISDA"] = classifier(data, network, "isda")
        found["ISDA + Dropout"] = classifier(data, network, "isda", **dropout)
        return found
