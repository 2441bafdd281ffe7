"""What the runs of a study say: figures of each cell over seeds, and differences to the baseline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isda.analysis.studies.study import Cell
from isda.engine.comparing import run_folder_name
from isda.engine.folder.figures import Figure
from isda.engine.folder.reading import RunRecord, read_run
from isda.engine.folder.run_folder import RunFolder
from isda.report.method_summary import level_of_each
from isda.report.statistics import Interval, MeanStd, mean_std, paired_difference

__all__ = ["Row", "compared", "figures_of", "row_record", "rows_of"]


@dataclass(frozen=True)
class Row:
    """A cell and its finished runs, by seed; `values` and `differences` by the name of a figure."""

    cell: Cell
    runs: Mapping[int, RunRecord]
    values: Mapping[str, MeanStd]
    differences: Mapping[str, Interval]


def figures_of(runs: Iterable[RunRecord]) -> list[Figure]:
    """What a study shows of its runs, the headline first: what they were judged by, without the easier top-5 error."""
    first = next(iter(runs), None)
    if first is None:
        raise ValueError("none of the runs of the study is finished")
    return [figure for figure in first.config.figures if figure.averaged and figure.name != "error_top5"]


def rows_of(cells: Sequence[Cell], folder: Path, seeds: Sequence[int]) -> list[Row]:
    """The rows of a study whose runs are in a folder; unfinished runs do not count.

    Differences are to the first cell on common seeds. Their intervals hold together with 95% (Bonferroni).

    Raises:
        ValueError: no run is finished.
    """
    found = []
    for cell in cells:
        places = {seed: folder / run_folder_name(cell.method, seed) for seed in seeds}
        found.append({seed: read_run(place) for seed, place in places.items() if RunFolder(place).finished})
    return compared(cells, found)


def compared(cells: Sequence[Cell], found: Sequence[Mapping[int, RunRecord]]) -> list[Row]:
    """The rows of cells whose finished runs, by seed, are given; see `rows_of`."""
    names = [figure.name for figure in figures_of(run for runs in found for run in runs.values())]
    level = level_of_each((len(cells) - 1) * len(names))
    rows, base = [], found[0]
    for cell, runs in zip(cells, found, strict=True):
        values = {name: mean_std(_of(runs, name)) for name in names if runs}
        common = [seed for seed in runs if seed in base] if runs is not base else []
        differences = {
            name: paired_difference(_of(runs, name, common), _of(base, name, common), level) for name in names if common
        }
        rows.append(Row(cell, runs, values, differences))
    return rows


def row_record(row: Row) -> dict[str, Any]:
    """A row as plain values."""
    return {
        "label": row.cell.label,
        "method": row.cell.method,
        "series": row.cell.series,
        "x": str(row.cell.x) if row.cell.x == float("inf") else row.cell.x,
        "seeds": sorted(row.runs),
        "values": {name: value._asdict() for name, value in row.values.items()},
        "differences": {name: interval._asdict() for name, interval in row.differences.items()},
    }


def _of(runs: Mapping[int, RunRecord], name: str, seeds: Sequence[int] | None = None) -> list[float]:
    chosen = [runs[seed] for seed in (runs if seeds is None else seeds)]
    return [float(run.result[name]) for run in chosen if run.result is not None]
