"""Reproduced values beside the printed ones for every cell, and paired differences due to ISDA."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isda.lab.report.statistics import Interval, MeanStd, compare_pairs, mean_std, paired_cells
from isda.lab.reproduce.experiment import TableCell, TableExperiment
from isda.lab.reproduce.printed_tables import PaperCell, PaperTable
from isda.lab.reproduce.training import Outcomes, TrainingOutcome


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


INTERVALS = (
    "simultaneous 95% confidence intervals of all rows of a column (multivariate t, one variance pooled over them)"
)
"""What `gains` are given with, if there are enough runs."""

NO_INTERVALS = "without confidence intervals, for which there are too few runs"


def intervals_text(differences: Sequence[Gain]) -> str:
    """What differences are given with; for captions."""
    return INTERVALS if any(gain.ours.half_width is not None for gain in differences) else NO_INTERVALS


def gains(experiment: TableExperiment, cells: Sequence[TableCell], outcomes: Outcomes) -> list[Gain]:
    """Differences of all cells with a base to this base, with `INTERVALS`.

    A seed pairs the trainings of one base, so it has an effect of its own for each base. The paper's difference is to
    the base's cell, which need not be one of ``cells``.
    """
    table, printed = experiment.cells(), experiment.printed
    groups: dict[tuple[str, str], list[TableCell]] = {}
    for cell in cells:
        if cell.base is not None and not cell.improvement:
            groups.setdefault((cell.column, cell.figure), []).append(cell)
    found: dict[tuple[str, str], Gain] = {}
    for (_, figure), rows in groups.items():
        bases = {cell.row: cell.base.name for cell in rows if cell.base is not None}
        values = {base: outcomes[base].values(figure) for base in bases.values()}
        cells_of = {f"{base}, base": {(base, seed): v for seed, v in values[base].items()} for base in values}
        for cell in rows:
            own = outcomes[cell.training.name].values(figure)
            cells_of[cell.row] = {(bases[cell.row], seed): value for seed, value in own.items()}
        family = compare_pairs(paired_cells(cells_of), {row: (row, f"{base}, base") for row, base in bases.items()})
        for cell in rows:
            interval = family.get(cell.row)
            if interval is not None:
                control = values[bases[cell.row]]
                own = outcomes[cell.training.name].values(figure)
                seeds = [seed for seed, value in own.items() if math.isfinite(value - control.get(seed, math.nan))]
                gain = Gain(cell.row, cell.column, interval, len(seeds), _printed_gain(cell, table, printed))
                found[cell.row, cell.column] = gain
    return [found[cell.row, cell.column] for cell in cells if (cell.row, cell.column) in found]


def _printed_gain(cell: TableCell, cells: Sequence[TableCell], printed: PaperTable) -> float | None:
    bases = (other for other in cells if other.training == cell.base and other.figure == cell.figure)
    base = next((other for other in bases if not other.improvement), None)
    if base is None:
        return None
    with_isda, without = printed.cell(cell.row, cell.column), printed.cell(base.row, base.column)
    if with_isda is None or without is None or with_isda.value is None or without.value is None:
        return None
    return with_isda.value - without.value
