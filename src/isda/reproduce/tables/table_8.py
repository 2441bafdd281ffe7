"""Table 8: what each part of ISDA is worth."""

from __future__ import annotations

from typing import Any

from isda.reproduce.experiment import Cell, TableExperiment
from isda.reproduce.trainings import classifier

__all__ = ["Table8"]

NETWORK = "wide-resnet-28-10"
METHODS = {
    "Identity matrix": "isda:covariance=identity",
    "Diagonal matrix": "isda:covariance=diagonal",
    "Single covariance matrix": "isda:covariance=shared",
    "Constant lambda_0": "isda:schedule=constant",
    "ISDA": "isda",
}
COLUMNS: dict[str, dict[str, Any]] = {
    "CIFAR-10": {"data": "cifar10"},
    "CIFAR-100": {"data": "cifar100"},
    "CIFAR-100 + Cutout": {"data": "cifar100", "augment": "cutout"},
}


class Table8(TableExperiment):
    """Wide-ResNet-28-10 with parts of ISDA replaced; the strength is chosen for each row."""

    name = "table-8"

    def cells(self) -> list[Cell]:
        """Test errors."""
        found = []
        for column, said in COLUMNS.items():
            basic = classifier(network=NETWORK, method="cross-entropy", **said)
            found.append(Cell(row="Basic", column=column, training=basic))
            for row, method in METHODS.items():
                one = classifier(network=NETWORK, method=method, tuned=True, **said)
                found.append(Cell(row=row, column=column, training=one, base=basic))
        return found
