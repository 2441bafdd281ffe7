"""From runs to comparisons: which runs belong together, each method's error over seeds, and paired differences.

Runs are compared where everything but method and seed is the same. Unfinished runs are listed, never averaged.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from isda.report.method_summary import LEVEL, MethodSummary, isda_part
from isda.report.runs import RunRecord
from isda.report.statistics import mean_std, paired_difference

__all__ = ["BASELINES", "Comparison", "labels", "summarise"]

BASELINES = ("cross-entropy", "supervised")
"""Methods that the others are compared to, wherever one of them is there."""

RECIPE = (
    "data",
    "network",
    "scale",
    "epochs",
    "labels",
    "unlabelled",
    "held_out",
    "evaluated_on",
    "train_images",
    "network_options",
    "augment",
    "normalisation",
    "batch_size",
    "lr",
    "schedule",
    "milestones",
    "lr_factor",
    "momentum",
    "weight_decay",
    "average_last",
    "ema",
    "precision",
)
"""The settings that must agree for runs to be compared; only data, network, scale and epochs are always there."""


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
        return str(self.runs[0].config["scale"])

    @property
    def epochs(self) -> int:
        """Epochs of each run."""
        return self.runs[0].epochs

    @property
    def average_last(self) -> int:
        """How many last epochs a run's error is averaged over."""
        return int(self.runs[0].config.get("average_last") or 1)

    @property
    def evaluated_on(self) -> str:
        """What the errors were measured on: test or held-out."""
        return str(self.runs[0].config.get("evaluated_on") or "test")

    @property
    def tells_isda_apart(self) -> bool:
        """Whether ISDA's part in a method is another figure than the method's difference to the baseline."""
        return any(method.from_isda not in (None, method.difference) for method in self.methods)

    @property
    def seeds(self) -> list[int]:
        """The seeds of finished runs."""
        return sorted({seed for method in self.methods for seed in method.errors})

    def as_json(self) -> dict[str, Any]:
        """The comparison as plain values: errors in percent, differences (method - baseline) in points."""
        return {
            "title": self.title,
            **{key: self.runs[0].config.get(key) for key in RECIPE},
            "average_last": self.average_last,
            "evaluated_on": self.evaluated_on,
            "baseline": self.baseline.label,
            "methods": [_method_json(method) for method in self.methods],
        }


def _method_json(method: MethodSummary) -> dict[str, Any]:
    error, difference, from_isda = method.error, method.difference, method.from_isda
    return {
        "label": method.label,
        "method": method.runs[0].method,
        "method_options": method.runs[0].method_options,
        "seeds": len(method.errors),
        "error_mean": error.mean if error else None,
        "error_std": error.std if error else None,
        "errors": {str(seed): value for seed, value in method.errors.items()},
        "paired_seeds": len(method.differences),
        "difference_mean": difference.mean if difference else None,
        "difference_half_width": difference.half_width if difference else None,
        "difference_level": LEVEL,
        "differences": {str(seed): value for seed, value in method.differences.items()},
        "from_isda_mean": from_isda.mean if from_isda else None,
        "from_isda_half_width": from_isda.half_width if from_isda else None,
        "folders": [run.folder.as_posix() for run in method.runs],
        "unfinished": [
            {"seed": run.seed, "epoch": run.epoch, "folder": run.folder.as_posix()} for run in method.unfinished
        ],
    }


def summarise(runs: Sequence[RunRecord]) -> list[Comparison]:
    """Sort runs into comparisons, in the order in which each first appears.

    In each, cross-entropy or the supervised floor comes first if it is there, then the methods in order of appearance;
    the difference of a method is taken over the seeds that it and the first have finished.

    Raises:
        ValueError: no runs, or two finished runs of the same method, settings and seed.
    """
    if not runs:
        raise ValueError("runs must hold at least one run, got none")
    groups: dict[str, list[RunRecord]] = {}
    for run in runs:
        groups.setdefault(_recipe(run), []).append(run)
    titles = _titles([members[0] for members in groups.values()])
    return [Comparison(title, _methods(members)) for title, members in zip(titles, groups.values(), strict=True)]


def _recipe(run: RunRecord) -> str:
    return json.dumps([run.config.get(key) for key in RECIPE], sort_keys=True)


def _titles(firsts: Sequence[RunRecord]) -> list[str]:
    """Data set and network, and in which settings they differ where several comparisons share both."""
    titles = []
    for run in firsts:
        names = (run.config["data"], run.config["network"])
        alike = [other.config for other in firsts if (other.config["data"], other.config["network"]) == names]
        distinct = [key for key in RECIPE if any(other.get(key) != run.config.get(key) for other in alike)]
        words = [f"{key}={_plain(run.config.get(key))}" for key in distinct]
        titles.append(", ".join([f"{names[0]} with {names[1]}", *words]))
    return titles


def _methods(runs: Sequence[RunRecord]) -> tuple[MethodSummary, ...]:
    by_label: dict[str, list[RunRecord]] = {}
    for label, run in zip(labels(runs), runs, strict=True):
        by_label.setdefault(label, []).append(run)
    # The sort is stable: it only moves the baseline to the front.
    ordered = sorted(by_label, key=lambda label: by_label[label][0].method not in BASELINES)
    base = _errors(ordered[0], by_label[ordered[0]])
    summaries = []
    for label in ordered:
        errors = _errors(label, by_label[label])
        common = [seed for seed in errors if seed in base] if label != ordered[0] else []
        summaries.append(
            MethodSummary(
                label=label,
                runs=tuple(sorted(by_label[label], key=lambda run: run.seed)),
                errors=errors,
                error=mean_std(list(errors.values())) if errors else None,
                differences={seed: errors[seed] - base[seed] for seed in common},
                difference=paired_difference([errors[s] for s in common], [base[s] for s in common], LEVEL)
                if common
                else None,
            )
        )
    return tuple(replace(method, from_isda=isda_part(method, summaries)) for method in summaries)


def _errors(label: str, runs: Sequence[RunRecord]) -> dict[int, float]:
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
    return {seed: float(run.result["error"]) for seed, run in sorted(finished.items()) if run.result is not None}


def labels(runs: Sequence[RunRecord]) -> list[str]:
    """A short name per run: the method, and those of its options in which runs of the same method differ.

    For example "isda", or "isda decay=0.99" beside runs of isda without decay.
    """
    named = []
    for run in runs:
        alike = [other.method_options for other in runs if other.method == run.method]
        keys = dict.fromkeys(key for options in alike for key in options)
        distinct = [key for key in keys if any(other.get(key) != alike[0].get(key) for other in alike)]
        options = run.method_options
        named.append(" ".join([run.method, *(f"{key}={_plain(options[key])}" for key in distinct if key in options)]))
    return named


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
