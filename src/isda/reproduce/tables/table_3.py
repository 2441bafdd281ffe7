"""Table 3: what ISDA costs on CIFAR."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from isda.reproduce.experiment import Cell, TableExperiment
from isda.reproduce.scale import Scale
from isda.reproduce.tables.cifar import DATA, NETWORKS
from isda.reproduce.tables.costs import counted_costs

__all__ = ["Table3"]

KINDS = {"absolute": "absolute", "relative": "relative", "wall time": "wall_time"}
COLUMNS = {"standard FLOPs": "multiply_adds"} | {
    f"{title} additional cost ({kind})": f"additional_{data}_{key}"
    for title, data in DATA.items()
    for kind, key in KINDS.items()
}


class Table3(TableExperiment):
    """Multiply-adds are counted, times are measured here: no training."""

    name = "table-3"
    note = "Times are of this machine; below the paper's scale they are measured with batches of 2."

    def cells(self) -> list[Cell]:
        """None."""
        return []

    def counted(self, scale: Scale, device: torch.device, only: Sequence[str]) -> Mapping[tuple[str, str], float]:
        """All of them."""
        return counted_costs(NETWORKS, COLUMNS, scale, device, only)
