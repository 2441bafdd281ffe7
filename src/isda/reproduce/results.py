"""Reproduced values beside the printed ones for every cell, and paired differences due to ISDA."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isda.report.statistics import Interval, MeanStd, level_of_each, mean_std, paired_difference
from isda.reproduce.experiment import TableCell, TableExperiment
from isda.reproduce.printed_tables import PaperCell, PaperTable
from isda.reproduce.training import Outcomes, TrainingOutcome


@dataclass(frozen=True)
class CellResult:
    """A cell: our value over seeds, or the problem, and the paper's."""

    row: str
    column: str
    paper: PaperCell | None
    value: MeanStd | None = None
    seeds: int = 0
    """0 where it is counted or measured without training."""
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
    """The paired difference of a cell to its base, and the difference of the paper's two means."""

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
    outcomes: Outcomes,
    counted: Mapping[tuple[str, str], float],
) -> list[CellResult]:
    """Every cell of the paper's table in its order, with our value if there is one."""
    trained = {(cell.row, cell.column): cell for cell in cells}
    results = []
    for paper in experiment.printed.cells:
        key = paper.row, paper.column
        if key in trained:
            results.append(_trained_result(trained[key], paper, outcomes))
        elif key in counted:
            results.append(CellResult(*key, paper, MeanStd(counted[key], None)))
        else:
            results.append(CellResult(*key, paper))
    return results


def _trained_result(cell: TableCell, paper: PaperCell, outcomes: Outcomes) -> CellResult:
    outcome = outcomes[cell.training.name]
    values = outcome.values(cell.figure)
    problem = "; ".join(outcome.problems)
    if cell.improvement and cell.base is not None:
        base = outcomes[cell.base.name]
        values = _improvements(cell, values, base)
        problem = "; ".join((*outcome.problems, *base.problems))
    finite = [value for value in values.values() if math.isfinite(value)]
    return CellResult(cell.row, cell.column, paper, mean_std(finite) if finite else None, len(finite), problem)


def _improvements(cell: TableCell, values: Mapping[int, float], base: TrainingOutcome) -> dict[int, float]:
    others = base.values(cell.figure)
    figures = {figure.name: figure for run in base.runs.values() for figure in run.config.figures}
    sign = 1 if cell.figure in figures and not figures[cell.figure].lower_is_better else -1
    return {seed: sign * (value - others[seed]) for seed, value in values.items() if seed in others}


def gains(experiment: TableExperiment, cells: Sequence[TableCell], outcomes: Outcomes) -> list[Gain]:
    """Paired differences of all cells with a base, with simultaneous 95% confidence intervals (Bonferroni).

    The paper's difference is to the base's cell, which need not be one of ``cells``.
    """
    table, printed = experiment.cells(), experiment.printed
    pairs = []
    for cell in cells:
        if cell.base is None or cell.improvement:
            continue
        ours, base = (outcomes[training.name].values(cell.figure) for training in (cell.training, cell.base))
        common = [seed for seed in ours if seed in base and math.isfinite(ours[seed] - base[seed])]
        if common:
            pairs.append((cell, [ours[seed] for seed in common], [base[seed] for seed in common]))
    level = level_of_each(len(pairs))
    return [
        Gain(
            cell.row, cell.column, paired_difference(ours, base, level), len(ours), _printed_gain(cell, table, printed)
        )
        for cell, ours, base in pairs
    ]


def _printed_gain(cell: TableCell, cells: Sequence[TableCell], printed: PaperTable) -> float | None:
    bases = (other for other in cells if other.training == cell.base and other.figure == cell.figure)
    base = next((other for other in bases if not other.improvement), None)
    if base is None:
        return None
    with_isda, without = printed.cell(cell.row, cell.column), printed.cell(base.row, base.column)
    if with_isda is None or without is None or with_isda.value is None or without.value is None:
        return None
    return with_isda.value - without.value
