"""Comparisons of runs: grouping, each method's metric over seeds, paired differences, and ISDA's contribution.

Runs are compared if they differ in method and seed only. Unfinished runs are listed, never averaged.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from isda.engine.config import Figure
from isda.engine.run_records import RunRecord
from isda.report.statistics import Interval, MeanStd, mean_std, paired_difference

LEVEL = 0.95
"""Of all intervals of a comparison together."""

SUFFIX = "+isda"


def level_of_each(intervals: int) -> float:
    """The level of one of several intervals such that all of them hold together with probability LEVEL or more.

    1 - (1 - LEVEL) / m for m intervals (Bonferroni).

    Example:
        >>> level_of_each(1), round(level_of_each(5), 3)
        (0.95, 0.99)
    """
    return LEVEL if intervals <= 1 else 1 - (1 - LEVEL) / intervals


def of_method(run: RunRecord) -> list[str]:
    """The settings, beside the options, that the run's task says are the method's."""
    return named_in(run, "of_method")


def named_in(run: RunRecord, field: str) -> list[str]:
    """The settings of a run that one of its fields lists."""
    named = run.stored.get(field)
    return [key for key in run.stored if isinstance(named, list) and key in named]


def own_settings(run: RunRecord) -> dict[str, Any]:
    """What a method is beside its name: its options, and the settings that are the method's."""
    return run.method_options | {key: run.stored[key] for key in of_method(run)}


@dataclass(frozen=True)
class MethodSummary:
    """One method in a comparison; `values` of the headline figure and `differences` to the baseline by seed."""

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
        """The runs without a result."""
        return tuple(run for run in self.runs if run.result is None)

    def common_seeds(self, other: MethodSummary) -> list[int]:
        """The seeds that both have finished."""
        return [seed for seed in self.values if seed in other.values]

    def difference_to(self, other: MethodSummary, level: float) -> Interval | None:
        """This method's figure - the other's on common seeds; None without any."""
        seeds = self.common_seeds(other)
        if not seeds:
            return None
        return paired_difference([self.values[seed] for seed in seeds], [other.values[seed] for seed in seeds], level)


def isda_part(method: MethodSummary, methods: Sequence[MethodSummary], level: float) -> Interval | None:
    """The figure with "+isda" - the figure without it, over the seeds that both have finished.

    None where ``methods`` do not hold exactly one like ``method`` without ISDA, with the same settings of its own.
    """
    alone = _without_isda(method, methods)
    return method.difference_to(alone, level) if alone else None


def interval_count(methods: Sequence[MethodSummary]) -> int:
    """How many intervals a comparison has, finished or not; the first method is the baseline.

    One per further method, and one per part of ISDA that is not such a difference already.
    """
    pairs = [(method, _without_isda(method, methods)) for method in methods]
    parts = [pair for pair in pairs if pair[1] is not None and not any(one is methods[0] for one in pair)]
    return len(methods) - 1 + len(parts)


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
    "version",
    "format",
    "of_method",
    "of_run",
    "baselines",
)
"""Settings in which the runs of one comparison may differ, beside those that a task says are the method's."""


@dataclass(frozen=True)
class Comparison:
    """Methods that were trained alike; the baseline is the first of them."""

    title: str
    methods: tuple[MethodSummary, ...]

    @property
    def baseline(self) -> MethodSummary:
        """The method to which the others are compared."""
        return self.methods[0]

    @property
    def runs(self) -> tuple[RunRecord, ...]:
        """All runs, method by method."""
        return tuple(run for method in self.methods for run in method.runs)

    @property
    def scale(self) -> str:
        """How much of the paper's recipe was run."""
        return self.runs[0].config.scale

    @property
    def epochs(self) -> int:
        """Epochs of each run."""
        return self.runs[0].config.epochs

    @property
    def average_last(self) -> int:
        """How many last epochs a run's figures are averaged over."""
        return self.runs[0].config.average_last

    @property
    def figure(self) -> Figure:
        """What the methods are compared by."""
        return self.runs[0].headline

    @property
    def evaluated_on(self) -> str:
        """What the figures were measured on: test or held-out."""
        return self.runs[0].config.evaluated_on

    @property
    def intervals(self) -> int:
        """How many intervals there are, or will be when all runs are finished."""
        return interval_count(self.methods)

    @property
    def level(self) -> float:
        """Of each interval: all of them together hold with probability LEVEL."""
        return level_of_each(self.intervals)

    @property
    def tells_isda_apart(self) -> bool:
        """Whether ISDA's part in a method is another figure than the method's difference to the baseline."""
        return any(method.from_isda not in (None, method.difference) for method in self.methods)

    @property
    def seeds(self) -> list[int]:
        """The seeds of finished runs."""
        return sorted({seed for method in self.methods for seed in method.values})

    def as_json(self) -> dict[str, Any]:
        """The comparison as plain values; differences are method - baseline."""
        first = self.runs[0].stored
        # What the report says comes last: a task's setting of the same name must not take its place.
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
        f"{figure}s": {str(seed): one for seed, one in method.values.items()},
        "paired_seeds": len(method.differences),
        "difference_mean": difference.mean if difference else None,
        "difference_half_width": difference.half_width if difference else None,
        "difference_level": level,
        "differences": {str(seed): one for seed, one in method.differences.items()},
        "from_isda_mean": from_isda.mean if from_isda else None,
        "from_isda_half_width": from_isda.half_width if from_isda else None,
        "folders": [run.folder.as_posix() for run in method.runs],
        "unfinished": [
            {"seed": run.seed, "epoch": run.epoch, "folder": run.folder.as_posix()} for run in method.unfinished
        ],
    }


def summarise(runs: Sequence[RunRecord]) -> list[Comparison]:
    """Sort runs into comparisons, in the order in which each first appears.

    In each, the task's baseline comes first if it is there, then the methods in order of appearance; the
    difference of a method is taken over the seeds that it and the first have finished.

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
    own = [*of_method(run), *named_in(run, "of_run")]
    return [key for key in run.stored if key not in APART and key not in own]


def _titles(firsts: Sequence[RunRecord]) -> list[str]:
    """Data set and network, and in which settings they differ where several comparisons of a task share both."""
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
    base, *others = summaries = [_alone(label, by_label[label]) for label in ordered]
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


def _alone(label: str, runs: Sequence[RunRecord]) -> MethodSummary:
    """A method by itself, before it is compared."""
    values = _values(label, runs)
    return MethodSummary(
        label=label,
        runs=tuple(sorted(runs, key=lambda run: run.seed)),
        values=values,
        value=mean_std(list(values.values())) if values else None,
    )


def _values(label: str, runs: Sequence[RunRecord]) -> dict[int, float]:
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
    return {seed: run.value for seed, run in sorted(finished.items()) if run.value is not None}


def labels(runs: Sequence[RunRecord]) -> list[str]:
    """A short name per run: the method, and those of its own settings in which runs of the same method differ.

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
