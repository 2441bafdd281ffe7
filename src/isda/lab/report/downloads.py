"""The numbers of a comparison as CSV files inside the page: links that work offline."""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Iterable, Sequence

from isda.lab.engine.run_records import RunRecord, is_number
from isda.lab.report.markup import Markup, tag
from isda.lab.report.summary import Comparison

MOST_BYTES = 2**20
"""A larger file of epochs is left out: the page would become too large to send around."""
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet takes for the beginning of a formula."""


def download_links(comparison: Comparison, name: str) -> Markup:
    """Links to the figures of every run, and to the metrics of every epoch; file names begin with `name`."""
    files = {"figures of every run": ("runs", runs_csv(comparison)), "metrics of every epoch": ("epochs", None)}
    epochs = epochs_csv(comparison)
    if epochs is not None and len(epochs.encode()) <= MOST_BYTES:
        files["metrics of every epoch"] = ("epochs", epochs)
    links = [
        tag("a", what, href=_data_uri(text), download=f"{name}-{kind}.csv")
        for what, (kind, text) in files.items()
        if text is not None
    ]
    words: list[str] = ["Download as CSV: "]
    for index, link in enumerate(links):
        words += [", "] * bool(index) + [link]
    return tag("p", *words, ".", class_="note")


def runs_csv(comparison: Comparison) -> str:
    """One line per run: method, seed, epochs, and each number of its result; empty cells for unfinished runs."""
    runs = [(method.label, run) for method in comparison.methods for run in method.runs]
    names = _names(run.result or {} for _, run in runs)
    head = ["comparison", "method", "seed", "finished", "epoch", *names]
    lines = [
        [comparison.title, label, run.seed, run.result is not None, run.epoch, *_cells(run.result or {}, names)]
        for label, run in runs
    ]
    return _text(head, lines)


def epochs_csv(comparison: Comparison) -> str | None:
    """One line per run and epoch with the recorded metrics; None if no epoch was recorded."""
    runs = [(method.label, run) for method in comparison.methods for run in method.runs if run.metrics]
    if not runs:
        return None
    names = [name for name in _names(line for _, run in runs for line in run.metrics) if name != "epoch"]
    return _text(["comparison", "method", "seed", "epoch", *names], list(_epoch_lines(comparison, runs, names)))


def _epoch_lines(
    comparison: Comparison, runs: Sequence[tuple[str, RunRecord]], names: Sequence[str]
) -> Iterable[list[object]]:
    for label, run in runs:
        for line in run.metrics:
            yield [comparison.title, label, run.seed, line["epoch"], *_cells(line, names)]


def _names(records: Iterable[dict[str, object]]) -> list[str]:
    """The names of all numbers, in order of appearance."""
    return list(dict.fromkeys(name for record in records for name, value in record.items() if is_number(value)))


def _cells(record: dict[str, object], names: Sequence[str]) -> list[object]:
    return [record[name] if is_number(record.get(name)) else "" for name in names]


def _text(head: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow([_plain(name) for name in head])
    writer.writerows([_plain(cell) for cell in line] for line in lines)
    return written.getvalue()


def _plain(cell: object) -> object:
    """The cell with an apostrophe before text that a spreadsheet would run."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell


def _data_uri(text: str) -> str:
    return f"data:text/csv;charset=utf-8;base64,{base64.b64encode(text.encode()).decode('ascii')}"
