"""Table 2: nine networks on CIFAR."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from isda.reproduce.experiment import Cell, TableExperiment
from isda.reproduce.scale import Scale
from isda.reproduce.tables.cifar import DATA, NETWORKS
from isda.reproduce.tables.costs import counted_costs
from isda.reproduce.trainings import classifier

__all__ = ["Table2"]


class Table2(TableExperiment):
    """Every network with and without ISDA on both CIFAR sets."""

    name = "table-2"

    def cells(self) -> list[Cell]:
        """Test errors; the strength of ISDA is chosen for each network and set."""
        found = []
        for row, network in NETWORKS.items():
            for title, data in DATA.items():
                basic, isda = (classifier(data, network, method) for method in ("cross-entropy", "isda"))
                found.append(Cell(row=row, column=f"{title} basic", training=basic))
                found.append(Cell(row=row, column=f"{title} ISDA", training=isda, base=basic))
        return found

    def counted(self, scale: Scale, device: torch.device, only: Sequence[str]) -> Mapping[tuple[str, str], float]:
        """Parameters, of the networks at their full width."""
        return counted_costs(NETWORKS, {"parameters": "parameters"}, scale, device, only)
