"""Registry of all experiments; add a class here to add a table or figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from isda.lab.choices import check_choice
from isda.lab.reproduce.experiment import Experiment
from isda.lab.reproduce.figures import (
    Figure5,
    Figure6,
    Figure7,
    Figure8,
    Figure9,
    Figure10,
    Figure11,
    Figure13,
    Figure14,
)
from isda.lab.reproduce.tables import Table1, Table2, Table3, Table4, Table5, Table6, Table7, Table8, Table11, Table12

ALL = "all"
_TABLES = (Table1, Table2, Table3, Table4, Table5, Table6, Table7, Table8, Table11, Table12)
_FIGURES = (Figure5, Figure6, Figure7, Figure8, Figure9, Figure10, Figure11, Figure13, Figure14)
EXPERIMENTS: Mapping[str, Experiment] = {kind.name: kind() for kind in (*_TABLES, *_FIGURES)}
"""By name, in the paper's order, tables first."""


def experiment_names() -> list[str]:
    """The names, in the paper's order.

    Example:
        >>> experiment_names()[:3], experiment_names()[-1]
        (['table-1', 'table-2', 'table-3'], 'figure-14')
    """
    return list(EXPERIMENTS)


def find_experiments(names: Sequence[str]) -> list[Experiment]:
    """The experiments of names, or all of them for "all".

    Raises:
        ValueError: no name, or an unknown one (with the nearest known).
    """
    if not names:
        raise ValueError(f"name a table or figure, list, or {ALL}; there are {', '.join(EXPERIMENTS)}")
    if list(names) == [ALL]:
        return list(EXPERIMENTS.values())
    return [EXPERIMENTS[check_choice("table or figure", name, EXPERIMENTS)] for name in dict.fromkeys(names)]
