"""Studies of a method (sensitivity, ablation, explicit augmentation): their cells, results and page (`isda study`)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from isda.lab.analysis.markup import Markup, boxed_table, column, number_cell, tag
from isda.lab.analysis.pages import COLOURS, new_figure, svg_figure, write_page
from isda.lab.engine.comparison import run_folder_name
from isda.lab.engine.config import Figure
from isda.lab.engine.options import canonical_method, split_method
from isda.lab.engine.run_folder import RunFolder
from isda.lab.engine.run_records import RunRecord, read_run
from isda.lab.report.statistics import Family, Interval, MeanStd, many_to_one, mean_std, paired_cells
from isda.lab.report.wording import interval_notes, intervals_text, plus_minus, scale_note

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIX = "+isda"


@dataclass(frozen=True)
class StudyCell:
    """One method of a study."""

    label: str
    """Its name in tables."""
    method: str
    """As `isda train --method` takes it."""
    series: str | None = None
    """The line that it belongs to; None for the baseline of all lines."""
    x: float | None = None
    """Its position on the axis."""


class Study(ABC):
    """A set of methods to compare."""

    title: ClassVar[str]
    axis: ClassVar[str | None] = None
    """Label of the axis; None for a study without one."""
    methods: ClassVar[tuple[str, ...]] = ("isda",)
    """Methods studied by default."""
    values: ClassVar[tuple[float, ...]] = ()
    """Values along the axis by default."""

    @classmethod
    @abstractmethod
    def cells(cls, methods: Sequence[str], values: Sequence[float]) -> list[StudyCell]:
        """The methods to train, the baseline first.

        Args:
            methods: to study, as in `isda train --method`.
            values: along the axis.
        """


def plain(method: str) -> str:
    """The method without ISDA.

    Example:
        >>> plain("isda:lambda_0=2"), plain("vat+isda:eta_1=2")
        ('cross-entropy', 'vat')
    """
    name, _ = split_method(method)
    return name.removesuffix(SUFFIX) if name.endswith(SUFFIX) else "cross-entropy"


def with_options(method: str, **options: object) -> str:
    """The method with further options, which replace options of the same names.

    Example:
        >>> with_options("isda:lambda_0=2", covariance="diagonal"), with_options("isda:lambda_0=2", lambda_0=1)
        ('isda:lambda_0=2,covariance=diagonal', 'isda:lambda_0=1')
    """
    name, words = split_method(method)
    kept = [word for word in words.split(",") if word and word.partition("=")[0] not in options]
    kept += [f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}" for key, value in options.items()]
    return canonical_method(f"{name}:{','.join(kept)}" if kept else name)


class SensitivityStudy(Study):
    """Each method at each strength lambda_0, beside the same without ISDA."""

    title = "Sensitivity to the strength"
    axis = "strength λ0"
    methods = ("isda", "isda-tilted")
    values = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

    @classmethod
    def cells(cls, methods: Sequence[str], values: Sequence[float]) -> list[StudyCell]:
        """The method without ISDA, then every strength of every method.

        Example:
            >>> [cell.method for cell in SensitivityStudy.cells(["vat+isda"], [0.5])]
            ['vat', 'vat+isda:lambda_0=0.5']
        """
        bases = dict.fromkeys(map(plain, methods))
        if not values or min(values) <= 0:
            raise ValueError(f"strengths must be above 0, got {list(values)}")
        return [StudyCell(base, base) for base in bases] + [
            StudyCell(f"{method}, λ0 = {value:g}", with_options(method, lambda_0=float(value)), method, float(value))
            for method in methods
            for value in values
        ]


PARTS: dict[str, dict[str, object]] = {
    "identity matrix": {"covariance": "identity"},
    "diagonal matrix": {"covariance": "diagonal"},
    "single covariance matrix": {"covariance": "shared"},
    "constant λ0": {"schedule": "constant"},
    "low rank (ours)": {"covariance": "low_rank"},
    "tilted bound (ours)": {"bound": "tilted"},
    "memory of 500 samples (ours)": {"memory": 500},
}
"""The options changed in each row."""


class AblationStudy(Study):
    """ISDA, and ISDA with one part changed at a time, all at the same strength."""

    title = "Ablation"

    @classmethod
    def cells(cls, methods: Sequence[str], values: Sequence[float]) -> list[StudyCell]:
        """The method without ISDA, as it is, and with each part changed.

        Example:
            >>> [cell.method for cell in AblationStudy.cells(["isda:lambda_0=1"], [])][:3]
            ['cross-entropy', 'isda:lambda_0=1', 'isda:lambda_0=1,covariance=identity']
        """
        if len(methods) != 1 or values:
            raise ValueError(f"an ablation takes one method and no values, got {list(methods)} and {list(values)}")
        method = methods[0]
        base = plain(method)
        changed = [StudyCell(label, with_options(method, **options)) for label, options in PARTS.items()]
        return [StudyCell(f"{base} (basic)", base), StudyCell(method, method), *changed]


COVARIANCES: dict[str, dict[str, object]] = {"estimated": {}, "learned": {"covariance": "learned"}}


class ExplicitStudy(Study):
    """M drawn features per sample, and ISDA as M = infinity, with estimated and with learned covariances."""

    title = "Explicit and implicit augmentation"
    axis = "augmented features per sample, M"
    values = (1, 2, 5)

    @classmethod
    def cells(cls, methods: Sequence[str], values: Sequence[float]) -> list[StudyCell]:
        """Cross-entropy (M = 0), each M, and the limit.

        Example:
            >>> [cell.method for cell in ExplicitStudy.cells(["isda"], [5])][:3]
            ['cross-entropy', 'explicit:samples=5', 'isda']
        """
        names = {split_method(method)[0] for method in methods}
        if len(methods) != 1 or not names <= {"isda", "isda-tilted"}:
            raise ValueError(f"an explicit study takes one method, isda or isda-tilted, got {list(methods)}")
        if not values or min(values) < 1 or not all(float(value).is_integer() for value in values):
            raise ValueError(f"numbers of augmented features must be integers of at least 1, got {list(values)}")
        _, words = split_method(methods[0])
        explicit = f"explicit:{words}" if words else "explicit"
        cells = [StudyCell("cross-entropy (M = 0)", "cross-entropy", None, 0.0)]
        for series, options in COVARIANCES.items():
            for value in values:
                method = with_options(explicit, samples=int(value), **options)
                cells.append(StudyCell(f"M = {value:g}, {series}", method, series, float(value)))
            cells.append(StudyCell(f"M = ∞, {series}", with_options(methods[0], **options), series, math.inf))
        return cells


@dataclass(frozen=True)
class StudyRow:
    """A cell and its finished runs by seed; `values` and `differences` by the name of a metric."""

    cell: StudyCell
    runs: Mapping[int, RunRecord]
    values: Mapping[str, MeanStd]
    differences: Mapping[str, Interval]


def figures_of(runs: Iterable[RunRecord]) -> list[Figure]:
    """The metrics that a study shows, the main one first; without top-5 error."""
    first = next(iter(runs), None)
    if first is None:
        raise ValueError("no run of the study is finished")
    return [figure for figure in first.config.figures if figure.averaged and figure.name != "error_top5"]


def rows_of(cells: Sequence[StudyCell], folder: Path, seeds: Sequence[int]) -> list[StudyRow]:
    """The rows of a study whose runs are in a folder; unfinished runs are skipped.

    Differences are to the first cell; those of one metric have simultaneous 95% confidence intervals (Dunnett).

    Raises:
        ValueError: no run is finished.
    """
    finished = []
    for cell in cells:
        folders = {seed: folder / run_folder_name(cell.method, seed) for seed in seeds}
        finished.append({seed: read_run(path) for seed, path in folders.items() if RunFolder(path).finished})
    return compare_cells(cells, finished)


def compare_cells(cells: Sequence[StudyCell], finished: Sequence[Mapping[int, RunRecord]]) -> list[StudyRow]:
    """The rows of cells, given the finished runs of each by seed; see `rows_of`."""
    names = [figure.name for figure in figures_of(run for runs in finished for run in runs.values())]
    labels = [cell.label for cell in cells]
    families = {name: _family(labels, finished, name) for name in names}
    rows = []
    for cell, runs in zip(cells, finished, strict=True):
        values = {name: mean_std(list(_values(runs, name).values())) for name in names if runs}
        shown = {name: families[name].get(cell.label) for name in names}
        differences = {name: interval for name, interval in shown.items() if interval is not None}
        rows.append(StudyRow(cell, runs, values, differences))
    return rows


def _family(labels: Sequence[str], finished: Sequence[Mapping[int, RunRecord]], name: str) -> Family:
    """Intervals of a metric, by the label of a cell."""
    values = {label: _values(runs, name) for label, runs in zip(labels, finished, strict=True)}
    return many_to_one(paired_cells(values), labels[0])


def row_record(row: StudyRow) -> dict[str, Any]:
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


def _values(runs: Mapping[int, RunRecord], name: str) -> dict[int, float]:
    return {seed: float(run.result[name]) for seed, run in runs.items() if run.result is not None}


STUDIES: dict[str, type[Study]] = {
    "sensitivity": SensitivityStudy,
    "ablation": AblationStudy,
    "explicit": ExplicitStudy,
}
"""Registered studies by name."""


LINE_STYLES = (("-", "o"), ("--", "s"), (":", "^"), ("-.", "D"))


def study_heads(rows: Sequence[StudyRow]) -> list[str]:
    """The column headings of the table."""
    figures = figures_of(run for row in rows for run in row.runs.values())
    return ["", "seeds", *(text for figure in figures for text in (figure.heading, "difference"))]


def study_rows(rows: Sequence[StudyRow]) -> Iterator[list[str]]:
    """The rows of the table as text."""
    figures = figures_of(run for row in rows for run in row.runs.values())
    for row in rows:
        line = [row.cell.label, str(len(row.runs))]
        for figure in figures:
            value, difference = row.values.get(figure.name), row.differences.get(figure.name)
            line.append(plus_minus(*value, digits=figure.digits) if value else "")
            line.append(plus_minus(*difference, digits=figure.digits) if difference else "")
        yield line


def study_caption(rows: Sequence[StudyRow]) -> str:
    """The caption of the table."""
    first = next(run for row in rows for run in row.runs.values())
    primary, *others = figures_of([first])
    family = _family([row.cell.label for row in rows], [row.runs for row in rows], primary.name)
    apart = f" of {primary.title}; each other metric is a family of its own" if others else ""
    notes = " ".join(["", *interval_notes(family)])
    return (
        f"Mean ± standard deviation over seeds. Differences: Δ vs {rows[0].cell.label}, {intervals_text(family)}"
        f"{apart}; negative is better.{notes} {scale_note(first.config)}"
    )


def write_study(path: Path, study: type[Study], rows: Sequence[StudyRow], command: str, report: str) -> None:
    """Write the page; ``report`` is a link to the report with the curves over training."""
    first = next(run for row in rows for run in row.runs.values())
    figures = figures_of([first])
    parts: list[str] = []
    if study.axis is not None:
        parts.append(_curves(study, rows, figures))
    top, *others = study_heads(rows)
    head = [column(top), *(column(name, numeric=True) for name in others)]
    lines = [[tag("th", line[0], scope="row"), *map(number_cell, line[1:])] for line in study_rows(rows)]
    parts.append(boxed_table(study.title, study_caption(rows), head, lines))
    parts.append(tag("p", "Every run, its curves over training and its settings: ", tag("a", report, href=report), "."))
    title = f"{study.title}: {first.stored['network']} on {first.stored['data']}"
    lede = f"{sum(len(row.runs) for row in rows)} runs that differ only in method and seed."
    write_page(path, "isda study", title, lede, parts, command)


def _curves(study: type[Study], rows: Sequence[StudyRow], figures: Sequence[Figure]) -> Markup:
    figure, panels = new_figure(len(figures))
    for shown, axes in zip(figures, panels, strict=True):
        _panel(axes, rows, shown)
        axes.set(xlabel=study.axis, ylabel=shown.heading)
    panels[0].legend(frameon=False, fontsize=8)
    return svg_figure(figure, "Means over seeds, ± standard deviation; in grey the same without ISDA.")


def _panel(axes: Axes, rows: Sequence[StudyRow], figure: Figure) -> None:
    for number, row in enumerate(row for row in rows if row.cell.series is None and row.values):
        mean, std = row.values[figure.name]
        axes.axhline(
            mean,
            color=COLOURS[0],
            linestyle=LINE_STYLES[number % len(LINE_STYLES)][0],
            linewidth=1,
            label=row.cell.label,
        )
        axes.axhspan(mean - (std or 0), mean + (std or 0), color=COLOURS[0], alpha=0.15, linewidth=0)
    positions = sorted({row.cell.x for row in rows if row.cell.series is not None and row.cell.x is not None})
    finite = [x for x in positions if math.isfinite(x)]
    # Infinity is drawn one step beyond the largest number.
    beyond = 2.5 * max(finite) if finite else 1.0
    for number, series in enumerate(dict.fromkeys(row.cell.series for row in rows if row.cell.series), start=1):
        line = [row for row in rows if row.cell.series == series and row.values and row.cell.x is not None]
        x = [row.cell.x if row.cell.x is not None and math.isfinite(row.cell.x) else beyond for row in line]
        style, mark = LINE_STYLES[(number - 1) % len(LINE_STYLES)]
        axes.errorbar(
            x,
            [row.values[figure.name].mean for row in line],
            [row.values[figure.name].std or 0 for row in line],
            color=COLOURS[number % len(COLOURS)],
            linestyle=style,
            marker=mark,
            markersize=4,
            capsize=2,
            linewidth=1.2,
            label=series,
        )
    axes.set_xscale("log")
    infinite = len(finite) < len(positions)
    names = [f"{x:g}" for x in finite] + ["∞"] * infinite
    axes.set_xticks([*finite, *[beyond] * infinite], labels=names)
    axes.minorticks_off()
