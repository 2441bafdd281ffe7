"""Cells that take no training: parameters, multiply-adds, and the time that ISDA adds to a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from isda.paper.cost_table import cost_rows
from isda.paper.timing import with_times
from isda.reproduce.experiment import in_place
from isda.reproduce.scale import Scale

__all__ = ["counted_costs"]

SMALL_BATCH = 2
"""Of timed steps below the paper's scale; the share of ISDA's time is larger then."""


def counted_costs(
    networks: Mapping[str, str], columns: Mapping[str, str], scale: Scale, device: torch.device, only: Sequence[str]
) -> dict[tuple[str, str], float]:
    """The cells of rows x columns.

    Args:
        networks: names of networks by row.
        columns: keys of a cost row (`isda.paper.cost_table`) by column.
        scale: times are measured with the paper's batches at its own scale, else with the smallest.
        device: where to measure.
        only: words that row and column must have.
    """
    known = {row.name: row for row in cost_rows()}
    found: dict[tuple[str, str], float] = {}
    for row, network in networks.items():
        wanted = {column: key for column, key in columns.items() if in_place(only, row, column)}
        costs = known[network]
        if any(key.endswith("_wall_time") for key in wanted.values()):
            costs = with_times(costs, device) if scale.full else with_times(costs, device, 1, SMALL_BATCH)
        found |= {(row, column): costs.cells[key].ours for column, key in wanted.items()}
    return found
