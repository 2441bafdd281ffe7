"""Comparisons of runs that differ in method and seed only, and what can be asked of them from Python.

Unfinished runs are listed, never averaged. Differences are estimated in the layout of all methods x seeds, with
simultaneous intervals (`isda.lab.report.statistics`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isda.lab.engine.config import Figure, RunConfig
from isda.lab.engine.run_records import RunRecord, find_runs, is_number
from isda.lab.report.planning import plan_seeds
from isda.lab.report.statistics import Family, Interval, many_to_one, mean_std, paired_cells
from isda.lab.report.tables import Cell, Column, Estimate, Table
from isda.lab.report.wording import caption, finding

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame


@dataclass(frozen=True)
class Method:
    """One method in a comparison."""

    label: str
    runs: tuple[RunRecord, ...]

    def of(self, figure: Figure) -> dict[int, float]:
        """A figure of the finished runs by seed, where it is a finite number."""
        found: dict[int, Any] = {run.seed: run.result.get(figure.name) for run in self.runs if run.result is not None}
        return {seed: float(value) for seed, value in found.items() if is_number(value) and math.isfinite(value)}

    def mean(self, figure: Figure, *, strong: bool = False) -> Estimate | None:
        """The mean over seeds with its standard deviation; None without a value."""
        values = list(self.of(figure).values())
        return Estimate(*mean_std(values), digits=figure.digits, strong=strong) if values else None


@dataclass(frozen=True)
class Comparison:
    """Methods whose runs differ only in method and seed; the first is the baseline.

    `load` makes one from run folders.
    """

    title: str
    methods: tuple[Method, ...]

    @property
    def baseline(self) -> Method:
        """The method that the others are compared to."""
        return self.methods[0]

    @property
    def runs(self) -> tuple[RunRecord, ...]:
        """All runs, method by method."""
        return tuple(run for method in self.methods for run in method.runs)

    @property
    def unfinished(self) -> list[tuple[str, RunRecord]]:
        """Runs without a result, with the labels of their methods."""
        return [(method.label, run) for method in self.methods for run in method.runs if run.result is None]

    @property
    def config(self) -> RunConfig:
        """Of the first run; the others differ only in method and seed."""
        return self.runs[0].config

    @property
    def figure(self) -> Figure:
        """What methods are compared by."""
        return self.config.figures[0]

    @property
    def seeds(self) -> list[int]:
        """The seeds of finished runs."""
        return sorted({seed for method in self.methods for seed in method.of(self.figure)})

    def paired_seeds(self, label: str) -> dict[int, float]:
        """The differences of a method to the baseline by seed."""
        ours = next(method for method in self.methods if method.label == label).of(self.figure)
        base = self.baseline.of(self.figure)
        return {seed: ours[seed] - base[seed] for seed in sorted(ours) if seed in base}

    def family(self, figure: Figure | None = None) -> Family:
        """The intervals of a figure's differences, by default of the first one."""
        figure = figure or self.figure
        if figure.name not in self._families:
            cells = paired_cells({method.label: method.of(figure) for method in self.methods})
            self._families[figure.name] = many_to_one(cells, self.baseline.label)
        return self._families[figure.name]

    @cached_property
    def _families(self) -> dict[str, Family]:
        """Those that were asked for, by the name of their figure."""
        return {}

    @property
    def differences(self) -> dict[str, Interval]:
        """The differences to the baseline by method."""
        return self.family()

    def finding(self, planned: float | None = None) -> str:
        """What the comparison shows, in one sentence; ``planned`` is a difference to name the seeds for."""
        return finding(self, planned)

    def table(self) -> Table:
        """Each method's figure over seeds and its difference to the baseline."""
        figure = self.figure
        unit = f", {figure.difference_unit}" if figure.difference_unit else ""
        columns = [Column("label", "method"), Column(figure.name, figure.heading, "std")]
        columns += [Column("difference", f"difference{unit}", "half_width")] if self.differences else []
        rows: list[list[Cell]] = []
        for method in self.methods:
            row: list[Cell] = [method.label, method.mean(figure)]
            if self.differences:
                one = self.differences.get(method.label)
                row.append(one and Estimate(*one, digits=figure.digits, sign=True, strong=one.excludes_zero))
            rows.append([*row, len(method.of(figure))])
        return Table(self.title, [*columns, Column("seeds", "seeds")], rows, caption(self))

    def as_json(self, planned: float | None = None) -> dict[str, Any]:
        """Plain values; differences are method - baseline. ``planned``: a difference to plan seeds for."""
        first, family = self.runs[0].stored, self.family()
        plan = plan_seeds(family, planned) if planned is not None else None
        methods = [
            record
            | {
                "method": method.runs[0].method,
                "method_options": method.runs[0].method_options,
                "difference_p": family.p_value(method.label),
                f"{self.figure.name}s": method.of(self.figure),
                "differences": {} if method is self.baseline else self.paired_seeds(method.label),
                "folders": [run.folder.as_posix() for run in method.runs],
                "unfinished": [run.folder.as_posix() for run in method.runs if run.result is None],
            }
            for record, method in zip(self.table().records(), self.methods, strict=True)
        ]
        return {key: first[key] for key in _recipe(self.runs[0])} | {
            "title": self.title,
            "finding": self.finding(planned),
            "baseline": self.baseline.label,
            "intervals": family.as_json(),
            "plan": plan and asdict(plan),
            "methods": methods,
        }

    def to_pandas(self) -> DataFrame:
        """A line for each run: method, seed, whether it is finished, and its figures."""
        from pandas import DataFrame

        figures = [figure.name for figure in self.config.figures]
        lines = [
            {"method": method.label, "seed": run.seed, "finished": run.result is not None, "epochs": run.epoch}
            | {name: (run.result or {}).get(name) for name in figures}
            | {"folder": run.folder.as_posix()}
            for method in self.methods
            for run in method.runs
        ]
        return DataFrame(lines).astype(dict.fromkeys(figures, float))

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the differences to the baseline, seed by seed and with their intervals (matplotlib).

        By default on axes of a new figure.
        """
        from isda.lab.report.charts import draw_differences

        if ax is None:
            from matplotlib import pyplot

            ax = pyplot.subplots(figsize=(6, 1 + 0.75 * max(1, len(self.differences))), layout="constrained")[1]
        return draw_differences(self, ax)

    def _repr_html_(self) -> str:
        from markupsafe import escape

        return f"<h3>{escape(self.finding())}</h3>{self.table().html()}"


def load(*paths: Path | str) -> Comparison:
    """The comparison of the runs in folders at any depth, such as the folder of `isda compare`.

    Raises a ValueError if there are none, or if they differ in more than method and seed.
    """
    comparisons = summarise(find_runs([Path(path) for path in paths]))
    if len(comparisons) > 1:
        titles = "; ".join(comparison.title for comparison in comparisons)
        raise ValueError(f"runs must differ in method and seed only, got {titles}; load each of these by itself")
    return comparisons[0]


APART = (
    *("method", "method_options", "seed", "settings", "chosen", "curves", "version", "format"),
    *("of_method", "of_run", "baselines", "sha256"),
)
"""Settings in which runs of a comparison may differ, beside those that a task counts as the method's."""


def summarise(runs: Sequence[RunRecord]) -> list[Comparison]:
    """Group runs into comparisons, in order of appearance; in each, the task's baseline comes first if it has runs.

    Raises a ValueError without runs, and for two finished runs of the same method, settings and seed.
    """
    if not runs:
        raise ValueError("runs must hold at least one run, got none")
    groups: dict[str, list[RunRecord]] = {}
    for run in runs:
        alike = json.dumps({key: run.stored[key] for key in _recipe(run)}, sort_keys=True)
        groups.setdefault(alike, []).append(run)
    firsts = [members[0] for members in groups.values()]
    return [Comparison(_title(firsts, members[0]), _methods(members)) for members in groups.values()]


def _listed(run: RunRecord, field: str) -> list[str]:
    """The settings of a run that its field ``of_method`` or ``of_run`` lists."""
    names = run.stored.get(field)
    return [key for key in run.stored if isinstance(names, list) and key in names]


def own_settings(run: RunRecord) -> dict[str, Any]:
    """The options of a run's method, and the settings that its task counts as the method's."""
    return run.method_options | {key: run.stored[key] for key in _listed(run, "of_method")}


def _recipe(run: RunRecord) -> list[str]:
    """The settings that must agree for runs to be compared: all but the method's own, and the seed."""
    own = [*_listed(run, "of_method"), *_listed(run, "of_run")]
    return [key for key in run.stored if key not in APART and key not in own]


def _title(firsts: Sequence[RunRecord], run: RunRecord) -> str:
    """Data set and network, with the settings that tell it from other comparisons of both."""
    config = run.config
    beside = [other for other in firsts if (other.config.data, other.config.network) == (config.data, config.network)]
    distinct = [key for key in _recipe(run) if any(other.stored.get(key) != run.stored[key] for other in beside)]
    words = [f"{key}={_plain(run.stored[key])}" for key in distinct if key != "figures"]
    words = words[:1] if words and words[0].startswith("task=") else words
    return ", ".join([f"{config.data} with {config.network}", *words])


def _methods(runs: Sequence[RunRecord]) -> tuple[Method, ...]:
    by_label: dict[str, list[RunRecord]] = {}
    for label, run in zip(labels(runs), runs, strict=True):
        alike = by_label.setdefault(label, [])
        twin = next((other for other in alike if other.seed == run.seed and other.result and run.result), None)
        if twin is not None:
            raise ValueError(
                f"runs must hold one run of each method and seed, got two of {label} with seed {run.seed}: "
                f"{twin.folder} and {run.folder}"
            )
        alike.append(run)
    methods = [Method(label, tuple(sorted(alike, key=lambda run: run.seed))) for label, alike in by_label.items()]
    # The sort is stable: it only moves the baseline to the front.
    return tuple(sorted(methods, key=lambda method: not method.runs[0].is_baseline))


def labels(runs: Sequence[RunRecord]) -> list[str]:
    """A short label per run: the method, and its own settings in which runs of the same method differ.

    For example "isda", or "isda lambda_0=2" beside runs of isda with another strength.
    """
    named = []
    for run in runs:
        alike = [own_settings(other) for other in runs if other.method == run.method]
        keys = dict.fromkeys(key for options in alike for key in options)
        distinct = [key for key in keys if any(other.get(key) != alike[0].get(key) for other in alike)]
        options = own_settings(run)
        named.append(" ".join([run.method, *(f"{key}={_plain(options[key])}" for key in distinct if key in options)]))
    return named


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value)
