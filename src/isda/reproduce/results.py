"""Reproduced values beside the printed ones for every cell, and paired differences due to ISDA."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isda.report.statistics import Interval, MeanStd, mean_std, paired_difference
from isda.report.summary import level_of_each
from isda.reproduce.experiment import TableCell, TableExperiment
from isda.reproduce.printed_tables import PaperCell, PaperTable
from isda.reproduce.training import TrainingOutcome


@dataclass(frozen=True)
class CellResult:
    """A cell: ours over seeds, or why there is none, and the paper's."""

    row: str
    column: str
    paper: PaperCell | None
    value: MeanStd | None = None
    seeds: int = 0
    problem: str = ""

    def record(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "row": self.row,
            "column": self.column,
            "paper": self.paper.printed if self.paper else None,
            "source": self.paper.source if self.paper else None,
            "mean": self.value.mean if self.value else None,
            "std": self.value.std if self.value else None,
            "seeds": self.seeds,
            "problem": self.problem or None,
        }


@dataclass(frozen=True)
class Gain:
    """The difference that ISDA makes in a cell on the same seeds, and the difference of the paper's two means."""

    row: str
    column: str
    ours: Interval
    seeds: int
    paper: float | None

    def record(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "row": self.row,
            "column": self.column,
            "mean": self.ours.mean,
            "half_width": self.ours.half_width,
            "seeds": self.seeds,
            "paper": self.paper,
        }


def cell_results(
    experiment: TableExperiment,
    cells: Sequence[TableCell],
    made: Mapping[str, TrainingOutcome],
    counted: Mapping[tuple[str, str], float],
) -> list[CellResult]:
    """Every cell of the paper's table in its order, with what we have for it."""
    trained = {(cell.row, cell.column): cell for cell in cells}
    found = []
    for paper in experiment.printed.cells:
        place = paper.row, paper.column
        if place in trained:
            found.append(_answer(trained[place], paper, made))
        elif place in counted:
            found.append(CellResult(*place, paper, MeanStd(counted[place], None), 1))
        else:
            found.append(CellResult(*place, paper))
    return found


def _answer(cell: TableCell, paper: PaperCell, made: Mapping[str, TrainingOutcome]) -> CellResult:
    outcome = made[cell.training.name]
    values = outcome.values(cell.figure)
    problem = "; ".join(outcome.problems)
    if cell.improvement and cell.base is not None:
        values = _improvements(cell, values, made[cell.base.name])
        problem = "; ".join((*outcome.problems, *made[cell.base.name].problems))
    finite = [value for value in values.values() if math.isfinite(value)]
    return CellResult(cell.row, cell.column, paper, mean_std(finite) if finite else None, len(finite), problem)


def _improvements(cell: TableCell, values: Mapping[int, float], base: TrainingOutcome) -> dict[int, float]:
    others = base.values(cell.figure)
    figures = {figure.name: figure for run in base.runs.values() for figure in run.config.figures}
    sign = 1 if cell.figure in figures and not figures[cell.figure].lower_is_better else -1
    return {seed: sign * (value - others[seed]) for seed, value in values.items() if seed in others}


def gains(cells: Sequence[TableCell], made: Mapping[str, TrainingOutcome], printed: PaperTable) -> list[Gain]:
    """The paired difference of every cell that has a base; all intervals together hold with 95% (Bonferroni)."""
    pairs = []
    for cell in cells:
        if cell.base is None or cell.improvement:
            continue
        ours, base = made[cell.training.name].values(cell.figure), made[cell.base.name].values(cell.figure)
        common = [seed for seed in ours if seed in base and math.isfinite(ours[seed] - base[seed])]
        if common:
            pairs.append((cell, [ours[seed] for seed in common], [base[seed] for seed in common]))
    level = level_of_each(len(pairs))
    return [
        Gain(
            cell.row, cell.column, paired_difference(ours, base, level), len(ours), _printed_gain(cell, cells, printed)
        )
        for cell, ours, base in pairs
    ]


def _printed_gain(cell: TableCell, cells: Sequence[TableCell], printed: PaperTable) -> float | None:
    base = next(
        (one for one in cells if one.training == cell.base and one.figure == cell.figure and not one.improvement), None
    )
    if base is None:
        return None
    ours, theirs = printed.cell(cell.row, cell.column), printed.cell(base.row, base.column)
    if ours is None or theirs is None or ours.value is None or theirs.value is None:
        return None
    return ours.value - theirs.value
