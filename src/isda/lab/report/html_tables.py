"""HTML tables of a comparison: results, further metrics, settings, environment and runs."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from isda.lab.engine.run_records import RunRecord, is_number
from isda.lab.report.charts import swatch
from isda.lab.report.markup import Markup, boxed_table, column, join, name_cell, number_cell, tag
from isda.lab.report.per_class import ClassFigure
from isda.lab.report.statistics import Interval, mean_std
from isda.lab.report.summary import Comparison, MethodSummary
from isda.lab.report.wording import (
    accuracy_text,
    capitalised,
    caption,
    count_text,
    counted,
    difference_text,
    intervals_text,
    is_error,
    number,
    plus_minus,
    scale_note,
)

MANY = 8
"""Longer lists, such as class names, are shortened."""


def flatten(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings with dotted names.

    Example:
        >>> flatten({"seed": 1, "method_options": {"lambda_0": 0.5}})
        {'seed': 1, 'method_options.lambda_0': 0.5}
    """
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            flat |= {f"{key}.{inner}": below for inner, below in flatten(value).items()}
        else:
            flat[key] = value
    return flat


def shared(settings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The settings that are the same in all."""
    return {
        key: value
        for key, value in settings[0].items()
        if all(key in other and other[key] == value for other in settings)
    }


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of the settings that are not shared, in order of appearance."""
    same = shared(settings)
    return list(dict.fromkeys(key for other in settings for key in other if key not in same))


def value_text(value: Any) -> str:
    """A readable value of a setting: short numbers, no quotes, long lists shortened."""
    if value is None or value == []:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return format(value, ".6g")
    if isinstance(value, list):
        words = [value_text(item) for item in value]
        return ", ".join(words) if len(words) <= MANY else f"{', '.join(words[:4])}, … ({len(words)} in all)"
    return value if isinstance(value, str) else json.dumps(value)


def values_text(values: Sequence[Any]) -> str:
    """The distinct values of several runs; a dash if none has the setting."""
    return value_text(list(dict.fromkeys(value_text(value) for value in values))) if values else "–"


UNSHOWN = ("settings", "chosen", "figures", "curves", "of_method", "of_run", "baselines")
"""Entries of config.json that are not settings."""


def results(comparison: Comparison, styles: Mapping[str, int], *, accuracy: bool = False) -> Markup:
    """Each method's metric over seeds and its paired difference to the baseline; with `accuracy` beside an error."""
    paired = any(method.difference for method in comparison.methods)
    figure = comparison.figure
    unit = f", {figure.difference_unit}" if figure.difference_unit else ""
    head = [column("Method"), column(capitalised(figure.heading), numeric=True)]
    accuracy = accuracy and is_error(figure)
    if accuracy:
        head.append(column("Accuracy, %", numeric=True))
    if paired:
        head.append(column(f"Difference{unit}", numeric=True))
    if comparison.tells_isda_apart:
        head.append(column(f"From ISDA{unit}", numeric=True))
    head.append(column("Seeds", numeric=True))
    rows, text = [], caption(comparison)
    for method in comparison.methods:
        cells = [
            _method(method.label, styles),
            number_cell(plus_minus(*method.value, figure.digits) if method.value else "unfinished"),
        ]
        if accuracy:
            cells.append(number_cell(accuracy_text(method.value, figure) or "–"))
        if paired:
            cells.append(_difference(method.difference, figure.digits))
        if comparison.tells_isda_apart:
            cells.append(_difference(method.from_isda, figure.digits))
        rows.append([*cells, number_cell(count_text(method))])
    shown = [interval for method in comparison.methods for interval in (method.difference, method.from_isda)]
    if any(interval is not None and interval.excludes_zero for interval in shown):
        text += " In bold: the interval excludes zero."
    table = boxed_table(f"Results on {comparison.title}", text, head, rows)
    return join([table, _all_pairs(comparison)]) if comparison.intervals.procedure == "Tukey" else table


def _all_pairs(comparison: Comparison) -> Markup:
    """The differences of all pairs, where no method is the control; folded."""
    family, figure = comparison.intervals, comparison.figure
    unit = f", {figure.difference_unit}" if figure.difference_unit else ""
    head = [column("Pair"), column(f"Difference{unit}", numeric=True)]
    rows = [[tag("th", name, scope="row"), _difference(family.shown(name), figure.digits)] for name in family]
    text = f"All pairs of methods, {intervals_text(family)}."
    table = boxed_table(f"All pairs on {comparison.title}", text, head, rows)
    return tag("details", tag("summary", f"All {len(family)} pairs of methods"), table)


def _difference(difference: Interval | None, digits: int) -> Markup:
    clear = difference is not None and difference.excludes_zero
    return number_cell(difference_text(difference, digits) or "–", clear=clear)


def further_metrics(comparison: Comparison, styles: Mapping[str, int]) -> Markup | None:
    """The other metrics of finished runs, if any."""
    measured = [run.result for run in comparison.runs if run.result is not None]
    keys = {
        key: shape
        for key, shape in _further(comparison).items()
        if any(is_number(result.get(key)) for result in measured)
    }
    if not keys:
        return None
    head = [column("Method"), *(column(capitalised(heading), numeric=True) for heading, _ in keys.values())]
    rows = [
        [
            _method(method.label, styles),
            *(number_cell(_metric(method, key, digits)) for key, (_, digits) in keys.items()),
        ]
        for method in comparison.methods
        if method.values
    ]
    text = f"Further metrics of finished runs: mean ± standard deviation over seeds.{scale_note(comparison.config)}"
    return boxed_table(f"Further metrics on {comparison.title}", text, head, rows)


def _further(comparison: Comparison) -> dict[str, tuple[str, int]]:
    """Headings and digits of all metrics but the one that runs are compared by."""
    first, *others = comparison.runs[0].config.figures
    last = {f"{first.name}_last": (f"last epoch's {first.heading}", first.digits)}
    return last | {figure.name: (figure.heading, figure.digits) for figure in others} | {"seconds": ("time, s", 0)}


def _metric(method: MethodSummary, key: str, digits: int) -> str:
    values = [run.result[key] for run in method.runs if run.result is not None and is_number(run.result.get(key))]
    if not values:
        return "–"
    return plus_minus(*mean_std(values), digits) if all(map(math.isfinite, values)) else "not finite"


def per_class(figure: ClassFigure, comparison: Comparison) -> Markup:
    """One metric of every class, a column per method, folded."""
    head = [column("Class"), *(column(label, numeric=True) for label in figure.values)]
    rows = []
    for name in figure.classes:
        intervals = [values.get(name) for values in figure.values.values()]
        cells = [number_cell(plus_minus(*interval, figure.digits) if interval else "–") for interval in intervals]
        rows.append([tag("th", name, scope="row"), *cells])
    title = capitalised(figure.title)
    text = f"{title} per class: mean ± half of Student's interval (95% each).{scale_note(comparison.config)}"
    table = boxed_table(f"{title} per class on {comparison.title}", text, head, rows)
    return tag("details", tag("summary", f"{title} per class as a table"), table)


def differing_settings(comparison: Comparison) -> Markup:
    """The settings in which the runs differ, a column per method."""
    settings = {method.label: [_settings(run) for run in method.runs] for method in comparison.methods}
    names = differing([of_run for of_method in settings.values() for of_run in of_method])
    keys = [key for key in names if key not in ("method", "seed")]
    if not keys:
        return tag("p", "The runs differ only in method and seed.")
    head = [column("Setting"), *(column(label) for label in settings)]
    rows = [
        [name_cell(key), *(tag("td", _values_of(key, of_method)) for of_method in settings.values())] for key in keys
    ]
    text = "Settings in which the runs differ, except method and seed."
    return boxed_table(f"Differing settings on {comparison.title}", text, head, rows)


def _values_of(key: str, settings: Sequence[Mapping[str, Any]]) -> str:
    return values_text([of_run[key] for of_run in settings if key in of_run])


def shared_settings(comparison: Comparison) -> Markup:
    """The settings that all runs share, folded."""
    rows = {key: value_text(value) for key, value in shared([_settings(run) for run in comparison.runs]).items()}
    return _folded(
        "What all runs share", f"Shared settings on {comparison.title}", "Settings that all runs share.", rows
    )


def _settings(run: RunRecord) -> dict[str, Any]:
    """The resolved settings, with dotted names."""
    return flatten({key: value for key, value in run.stored.items() if key not in UNSHOWN})


def environment(comparison: Comparison) -> Markup:
    """Versions and machines of the runs, folded."""
    recorded = [flatten(run.environment) for run in comparison.runs]
    rows = {key: _values_of(key, recorded) for key in [*shared(recorded), *differing(recorded)]}
    return _folded("Where they ran", f"Environment on {comparison.title}", "Environment of the runs.", rows)


def _folded(summary: str, name: str, caption: str, rows: Mapping[str, str]) -> Markup:
    if not rows:
        return tag("p", f"{summary}: not recorded.", class_="note")
    cells = [[name_cell(key), tag("td", text)] for key, text in rows.items()]
    return tag("details", tag("summary", summary), boxed_table(name, caption, [column("Name"), column("Value")], cells))


def run_list(comparison: Comparison, folder: Path) -> Markup:
    """Every run with its folder relative to `folder`, and its state; folded."""
    head = [
        column("Folder"),
        column("Method"),
        column("Seed", numeric=True),
        column("State"),
        column(capitalised(comparison.figure.heading), numeric=True),
    ]
    rows = []
    for method in comparison.methods:
        for run in method.runs:
            state = "finished" if run.result else f"epoch {run.epoch} of {run.config.epochs}"
            rows.append(
                [
                    name_cell(Path(os.path.relpath(run.folder, folder)).as_posix()),
                    tag("td", method.label),
                    number_cell(str(run.seed)),
                    tag("td", tag("span", state, class_=None if run.result else "unfinished")),
                    number_cell("–" if run.value is None else number(run.value, comparison.figure.digits)),
                ]
            )
    text = f"Every run, its folder relative to this page's.{scale_note(comparison.config)}"
    table = boxed_table(f"Runs on {comparison.title}", text, head, rows)
    return tag("details", tag("summary", f"The {counted(len(rows), 'run')} and their folders"), table)


def _method(label: str, styles: Mapping[str, int]) -> Markup:
    # A label may break between its options, but not within a name such as cross-entropy.
    first, *options = label.split(" ")
    words = [tag("span", swatch(styles[label]), first, class_="word")]
    words += [tag("span", option, class_="word") for option in options]
    return tag("th", Markup(" ".join(words)), scope="row")
