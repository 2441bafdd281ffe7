"""Comparisons of runs: grouping, each method's metric over seeds, paired differences, and ISDA's contribution.

Runs are compared if they differ in method and seed only. Unfinished runs are listed, never averaged.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from isda.engine.config import Figure, RunConfig
from isda.engine.run_records import RunRecord
from isda.report.statistics import Interval, MeanStd, level_of_each, mean_std, paired_difference

SUFFIX = "+isda"


def listed_settings(run: RunRecord, field: str) -> list[str]:
    """The settings of a run that its field ``of_method`` or ``of_run`` lists."""
    names = run.stored.get(field)
    return [key for key in run.stored if isinstance(names, list) and key in names]


def own_settings(run: RunRecord) -> dict[str, Any]:
    """The options of a run's method, and the settings that its task counts as the method's."""
    return run.method_options | {key: run.stored[key] for key in listed_settings(run, "of_method")}


@dataclass(frozen=True)
class MethodSummary:
    """One method in a comparison; `values` of the main metric and `differences` to the baseline by seed."""

    label: str
    runs: tuple[RunRecord, ...]
    values: dict[int, float]
    value: MeanStd | None
    differences: dict[int, float] = field(default_factory=dict)
    difference: Interval | None = None
    from_isda: Interval | None = None
    """See `isda_part`."""

    @property
    def unfinished(self) -> tuple[RunRecord, ...]:
        """Runs without a result."""
        return tuple(run for run in self.runs if run.result is None)

    def common_seeds(self, other: MethodSummary) -> list[int]:
        """Seeds that both have finished."""
        return [seed for seed in self.values if seed in other.values]

    def difference_to(self, other: MethodSummary, level: float) -> Interval | None:
        """This method's metric - the other's on common seeds; None without any."""
        seeds = self.common_seeds(other)
        if not seeds:
            return None
        return paired_difference([self.values[seed] for seed in seeds], [other.values[seed] for seed in seeds], level)


def isda_part(method: MethodSummary, methods: Sequence[MethodSummary], level: float) -> Interval | None:
    """The metric with "+isda" - the metric without it, over the seeds that both have finished.

    None unless ``methods`` hold exactly one counterpart of ``method`` without ISDA and with the same own settings.
    """
    alone = _without_isda(method, methods)
    return method.difference_to(alone, level) if alone else None


def interval_count(methods: Sequence[MethodSummary]) -> int:
    """The number of intervals of a comparison, finished or not; the first method is the baseline.

    One for each further method, and one for each contribution of ISDA that is not such a difference.
    """
    pairs = [(method, _without_isda(method, methods)) for method in methods]
    contributions = [
        method for method, other in pairs if other is not None and methods[0] is not method and methods[0] is not other
    ]
    return len(methods) - 1 + len(contributions)


def _without_isda(method: MethodSummary, methods: Sequence[MethodSummary]) -> MethodSummary | None:
    name, settings = method.runs[0].method, own_settings(method.runs[0])
    if not name.endswith(SUFFIX):
        return None
    alone = [
        other
        for other in methods
        if other.runs[0].method == name.removesuffix(SUFFIX)
        and all(settings.get(key) == value for key, value in own_settings(other.runs[0]).items())
    ]
    return alone[0] if len(alone) == 1 else None


APART = (
    "method",
    "method_options",
    "seed",
    "settings",
    "chosen",
    "curves",
    "version",
    "format",
    "of_method",
    "of_run",
    "baselines",
)
"""Settings in which the runs of one comparison may differ, beside those that a task says are the method's."""


@dataclass(frozen=True)
class Comparison:
    """Methods whose runs differ only in method and seed; the first is the baseline."""

    title: str
    methods: tuple[MethodSummary, ...]

    @property
    def baseline(self) -> MethodSummary:
        """The method that the others are compared to."""
        return self.methods[0]

    @property
    def runs(self) -> tuple[RunRecord, ...]:
        """All runs, method by method."""
        return tuple(run for method in self.methods for run in method.runs)

    @property
    def config(self) -> RunConfig:
        """Of the first run; the others differ only in method and seed."""
        return self.runs[0].config

    @property
    def figure(self) -> Figure:
        """The metric that methods are compared by."""
        return self.runs[0].headline

    @property
    def intervals(self) -> int:
        """Number of intervals when all runs are finished."""
        return interval_count(self.methods)

    @property
    def level(self) -> float:
        """Of each interval, for simultaneous coverage of LEVEL."""
        return level_of_each(self.intervals)

    @property
    def tells_isda_apart(self) -> bool:
        """Whether ISDA's contribution to some method differs from its difference to the baseline."""
        return any(method.from_isda not in (None, method.difference) for method in self.methods)

    @property
    def seeds(self) -> list[int]:
        """The seeds of finished runs."""
        return sorted({seed for method in self.methods for seed in method.values})

    def as_json(self) -> dict[str, Any]:
        """Plain values; differences are method - baseline."""
        first = self.runs[0].stored
        # Last, so that a task's setting of the same name does not replace it.
        return {key: first[key] for key in _recipe(self.runs[0])} | {
            "title": self.title,
            "baseline": self.baseline.label,
            "methods": [_method_json(method, self.figure.name, self.level) for method in self.methods],
        }


def _method_json(method: MethodSummary, figure: str, level: float) -> dict[str, Any]:
    value, difference, from_isda = method.value, method.difference, method.from_isda
    return {
        "label": method.label,
        "method": method.runs[0].method,
        "method_options": method.runs[0].method_options,
        "seeds": len(method.values),
        f"{figure}_mean": value.mean if value else None,
        f"{figure}_std": value.std if value else None,
        f"{figure}s": {str(seed): number for seed, number in method.values.items()},
        "paired_seeds": len(method.differences),
        "difference_mean": difference.mean if difference else None,
        "difference_half_width": difference.half_width if difference else None,
        "difference_level": level,
        "differences": {str(seed): number for seed, number in method.differences.items()},
        "from_isda_mean": from_isda.mean if from_isda else None,
        "from_isda_half_width": from_isda.half_width if from_isda else None,
        "folders": [run.folder.as_posix() for run in method.runs],
        "unfinished": [
            {"seed": run.seed, "epoch": run.epoch, "folder": run.folder.as_posix()} for run in method.unfinished
        ],
    }


def summarise(runs: Sequence[RunRecord]) -> list[Comparison]:
    """Group runs into comparisons, in order of appearance.

    In each, the task's baseline comes first if it has runs, then the methods in order of appearance; differences are
    over the seeds that a method and the first one have finished.

    Raises:
        ValueError: no runs, or two finished runs of the same method, settings and seed.
    """
    if not runs:
        raise ValueError("runs must hold at least one run, got none")
    groups: dict[str, list[RunRecord]] = {}
    for run in runs:
        alike = json.dumps({key: run.stored[key] for key in _recipe(run)}, sort_keys=True)
        groups.setdefault(alike, []).append(run)
    titles = _titles([members[0] for members in groups.values()])
    return [Comparison(title, _methods(members)) for title, members in zip(titles, groups.values(), strict=True)]


def _recipe(run: RunRecord) -> list[str]:
    """The settings that must agree for runs to be compared: all but the method's own, and the seed."""
    own = [*listed_settings(run, "of_method"), *listed_settings(run, "of_run")]
    return [key for key in run.stored if key not in APART and key not in own]


def _titles(firsts: Sequence[RunRecord]) -> list[str]:
    """Data set and network, with distinguishing settings if several comparisons of a task share both."""
    titles = []
    for run in firsts:
        names = (run.config.data, run.config.network)
        beside = [other for other in firsts if (other.config.data, other.config.network) == names]
        alike = [other for other in beside if other.config.task == run.config.task]
        keys = dict.fromkeys(key for other in alike for key in _recipe(other) if key not in ("figures", "curves"))
        distinct = [key for key in keys if any(other.stored.get(key) != run.stored.get(key) for other in alike)]
        words = [f"{key}={_plain(run.stored[key])}" for key in distinct if key in run.stored]
        task = [run.config.task] if len(alike) < len(beside) else []
        titles.append(", ".join([f"{names[0]} with {names[1]}", *task, *words]))
    return titles


def _methods(runs: Sequence[RunRecord]) -> tuple[MethodSummary, ...]:
    by_label: dict[str, list[RunRecord]] = {}
    for label, run in zip(labels(runs), runs, strict=True):
        by_label.setdefault(label, []).append(run)
    # The sort is stable: it only moves the baseline to the front.
    ordered = sorted(by_label, key=lambda label: not by_label[label][0].is_baseline)
    base, *others = summaries = [_method_summary(label, by_label[label]) for label in ordered]
    level = level_of_each(interval_count(summaries))
    compared = [
        replace(
            method,
            differences={seed: method.values[seed] - base.values[seed] for seed in method.common_seeds(base)},
            difference=method.difference_to(base, level),
        )
        for method in others
    ]
    return tuple(replace(method, from_isda=isda_part(method, summaries, level)) for method in (base, *compared))


def _method_summary(label: str, runs: Sequence[RunRecord]) -> MethodSummary:
    """A method without its differences to others."""
    finished: dict[int, RunRecord] = {}
    for run in runs:
        if run.result is None:
            continue
        if run.seed in finished:
            raise ValueError(
                f"runs must hold one run of each method and seed, got two of {label} with seed {run.seed}: "
                f"{finished[run.seed].folder} and {run.folder}"
            )
        finished[run.seed] = run
    values = {seed: run.value for seed, run in sorted(finished.items()) if run.value is not None}
    return MethodSummary(
        label=label,
        runs=tuple(sorted(runs, key=lambda run: run.seed)),
        values=values,
        value=mean_std(list(values.values())) if values else None,
    )


def labels(runs: Sequence[RunRecord]) -> list[str]:
    """A short label per run: the method, and its own settings in which runs of the same method differ.

    For example "isda", or "isda decay=0.99" beside runs of isda without decay.
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
    return value if isinstance(value, str) else json.dumps(value)
