"""Comparisons of runs: grouping, each method's metric over seeds, differences between methods, and ISDA's contribution.

Runs are compared if they differ in method and seed only. Unfinished runs are listed, never averaged. Differences are
estimated in the layout of all methods x seeds, with simultaneous intervals (`isda.lab.report.statistics`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from isda.lab.engine.config import Figure, RunConfig
from isda.lab.engine.run_records import RunRecord
from isda.lab.report.statistics import (
    Family,
    Interval,
    MeanStd,
    all_pairs,
    compare_pairs,
    many_to_one,
    mean_std,
    paired_cells,
    t_interval,
)

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
    """One method in a comparison; `values` of the main metric and `differences` to the baseline by seed.

    The half widths of `difference` and `from_isda` are None with too few seeds.
    """

    label: str
    runs: tuple[RunRecord, ...]
    values: dict[int, float]
    value: MeanStd | None
    differences: dict[int, float] = field(default_factory=dict)
    difference: Interval | None = None
    from_isda: Interval | None = None
    """The metric with "+isda" - the metric without it; see `isda_pairs`."""

    @property
    def unfinished(self) -> tuple[RunRecord, ...]:
        """Runs without a result."""
        return tuple(run for run in self.runs if run.result is None)

    @property
    def without_strength(self) -> tuple[RunRecord, ...]:
        """Finished runs of ISDA whose strength λ was 0 in every step, as lambda_0=auto may leave it."""
        return tuple(run for run in self.runs if run.result is not None and _strength_stayed_zero(run))

    def common_seeds(self, other: MethodSummary) -> list[int]:
        """Seeds that both have finished."""
        return [seed for seed in self.values if seed in other.values]


def _strength_stayed_zero(run: RunRecord) -> bool:
    strengths = [value for _, value in run.curve("strength")]
    return bool(strengths) and not any(strengths)


def isda_pairs(methods: Sequence[MethodSummary]) -> dict[str, tuple[str, str]]:
    """The labels of each method with "+isda", and of the same method without it.

    Only where ``methods`` hold exactly one counterpart without ISDA and with the same own settings.
    """
    alone = {method.label: _without_isda(method, methods) for method in methods}
    return {label: (label, other.label) for label, other in alone.items() if other is not None}


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
    intervals: Family
    """Of the differences to the baseline (Dunnett); of all pairs (Tukey) if the first method is none for its task."""

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
    def isda_overall(self) -> tuple[Interval, int] | None:
        """ISDA's contribution over all methods that it was added to, and the number of pairs of runs; None with one.

        Student's interval of the paired differences of all methods and seeds.
        """
        return overall_difference({method.label: method.values for method in self.methods}, isda_pairs(self.methods))

    @property
    def tells_isda_apart(self) -> bool:
        """Whether ISDA's contribution to some method differs from its difference to the baseline."""
        return any(alone != self.baseline.label for _, alone in isda_pairs(self.methods).values())

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
            "intervals": family_json(self.intervals),
            "from_isda_overall": overall_json(self.isda_overall),
            "methods": [_method_json(method, self) for method in self.methods],
        }


def overall_difference(
    values: Mapping[str, Mapping[int, float]], pairs: Mapping[str, tuple[str, str]]
) -> tuple[Interval, int] | None:
    """Student's interval of one difference over several pairs of methods and all seeds, and the number of gaps.

    Args:
        values: figures by method and seed.
        pairs: two methods each, first - second.

    Returns:
        None with fewer than two pairs of methods, or than three gaps.
    """
    gaps = [values[a][seed] - values[b][seed] for a, b in pairs.values() for seed in values[a] if seed in values[b]]
    return (t_interval(gaps), len(gaps)) if len(pairs) > 1 and len(gaps) > 2 else None


def family_json(family: Family) -> dict[str, Any]:
    """How intervals were made, and all of them, as plain values."""
    return {
        "procedure": family.procedure,
        "level": family.level,
        "methods": len(family.layout.names),
        "seeds": family.layout.seed_count,
        "missing": family.layout.missing,
        "residual_std": family.pooled.std,
        "degrees_of_freedom": family.pooled.dof,
        "levene_p": family.levene,
        "separate_variances": family.separate,
        "differences": {
            name: {"mean": interval.mean, "half_width": interval.half_width, "p": family.p_value(name)}
            for name, interval in family.items()
        },
    }


def overall_json(overall: tuple[Interval, int] | None) -> dict[str, Any] | None:
    """An interval and its number of pairs as plain values."""
    return None if overall is None else overall[0]._asdict() | {"pairs": overall[1]}


def _method_json(method: MethodSummary, comparison: Comparison) -> dict[str, Any]:
    figure, family = comparison.figure.name, comparison.intervals
    name = _difference_name(method, comparison.baseline)
    value, difference, from_isda = method.value, family.get(name), method.from_isda
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
        "difference_level": family.level,
        "difference_p": family.p_value(name),
        "differences": {str(seed): number for seed, number in method.differences.items()},
        "from_isda_mean": from_isda.mean if from_isda else None,
        "from_isda_half_width": from_isda.half_width if from_isda else None,
        "runs_without_strength": [run.seed for run in method.without_strength],
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
    return [_comparison(title, members) for title, members in zip(titles, groups.values(), strict=True)]


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


def _comparison(title: str, runs: Sequence[RunRecord]) -> Comparison:
    by_label: dict[str, list[RunRecord]] = {}
    for label, run in zip(labels(runs), runs, strict=True):
        by_label.setdefault(label, []).append(run)
    # The sort is stable: it only moves the baseline to the front.
    ordered = sorted(by_label, key=lambda label: not by_label[label][0].is_baseline)
    base, *others = methods = [_method_summary(label, by_label[label]) for label in ordered]
    cells = paired_cells({method.label: method.values for method in methods})
    # Tukey's pairs are named in this order: later methods - earlier ones.
    family = many_to_one(cells, base.label) if _has_control(base) else all_pairs(dict(reversed(cells.items())))
    compared = [
        replace(
            method,
            differences={seed: method.values[seed] - base.values[seed] for seed in method.common_seeds(base)},
            difference=family.shown(_difference_name(method, base)),
        )
        for method in others
    ]
    pairs = isda_pairs(methods)
    if all(alone == base.label for _, alone in pairs.values()):
        summaries = [replace(m, from_isda=m.difference) if m.label in pairs else m for m in (base, *compared)]
    else:
        parts = compare_pairs(cells, pairs)
        summaries = [replace(method, from_isda=parts.shown(method.label)) for method in (base, *compared)]
    return Comparison(title, tuple(summaries), family)


def _has_control(first: MethodSummary) -> bool:
    return first.runs[0].is_baseline


def _difference_name(method: MethodSummary, base: MethodSummary) -> str:
    """The name of a difference in the intervals of a comparison."""
    return method.label if _has_control(base) else f"{method.label} - {base.label}"


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
