"""The page of a reproduced table or figure: values, differences, deviations from the paper, failures."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from isda.lab.analysis.markup import Markup, boxed_table, column, join, number_cell, tag
from isda.lab.analysis.pages import write_page
from isda.lab.report.wording import number, plus_minus
from isda.lab.reproduce.experiment import Experiment
from isda.lab.reproduce.results import CellResult, Gain, intervals_text
from isda.lab.reproduce.training import Outcomes, Scale

GAIN_HEADS = ("", "column", "seeds", "ours", "paper")
STYLE = "small { display: block; opacity: 0.75; } caption span::before { content: none; }"
"""The paper's values below ours; captions are not numbered, to avoid confusion with the paper's tables."""
LARGE = 1e4
"""Larger counts are written in millions."""


def cell_text(result: CellResult) -> tuple[str, str]:
    """Our value, and the paper's."""
    paper = result.paper.printed if result.paper else ""
    if result.value is None:
        return ("failed" if result.problem else "", paper)
    mean, std = result.value
    ours = f"{mean / 1e6:,.2f}M" if mean >= LARGE else plus_minus(mean, std)
    return (f"{ours} ({result.seeds} seeds, some failed)" if result.problem else ours, paper)


def table_caption(scale: Scale, seeds: int, trained: bool) -> str:
    """The caption of a reproduced table; ``trained``: whether any of its cells needs training."""
    if not trained:
        return "Ours, counted or measured without training, below it the paper's."
    many = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    return f"Ours ({many}), below it the paper's. {scale.sentence}"


def gain_rows(gains: Sequence[Gain]) -> Iterator[list[str]]:
    """The rows of the table of differences as text."""
    for gain in gains:
        paper = number(gain.paper, sign=True) if gain.paper is not None else ""
        yield [gain.row, gain.column, str(gain.seeds), plus_minus(*gain.ours, sign=True), paper]


def write_table_page(
    path: Path,
    experiment: Experiment,
    scale: Scale,
    seeds: int,
    results: Sequence[CellResult],
    gains: Sequence[Gain],
    outcomes: Outcomes,
    pages: Sequence[Path],
    command: str,
    problem: str | None = None,
) -> None:
    """Write the page of a table (``results``, ``gains``) or figure (``pages``, written by its analysis, or why not)."""
    parts: list[str] = []
    if results:
        parts.append(_table(experiment.name, results, table_caption(scale, seeds, bool(outcomes))))
    if gains:
        head = [column(name, numeric=index > 1) for index, name in enumerate(GAIN_HEADS)]
        rows = [
            [tag("th", line[0], scope="row"), tag("td", line[1]), *map(number_cell, line[2:])]
            for line in gain_rows(gains)
        ]
        caption = (
            "The row's value minus that of the same method without ISDA (of the basic method, for other losses) on the "
            f"same seeds, {intervals_text(gains)}; beside it the difference of the paper's means."
        )
        parts.append(tag("h2", "Differences"))
        parts.append(boxed_table("Differences", caption, head, rows))
    if pages:
        links = [tag("li", tag("a", page.name, href=os.path.relpath(page, path.parent))) for page in pages]
        parts += [tag("h2", "Pictures"), tag("ul", *links)]
    parts += [*_notes(experiment, scale, outcomes, problem), *_trainings(outcomes, path.parent)]
    title = experiment.name.replace("-", " ").capitalize() + (f", scale {scale.name}" if outcomes else "")
    write_page(path, "isda reproduce", title, experiment.title, parts, command, STYLE)


def _table(name: str, results: Sequence[CellResult], caption: str) -> Markup:
    rows = dict.fromkeys(result.row for result in results)
    columns = list(dict.fromkeys(result.column for result in results))
    known = {(result.row, result.column): result for result in results}
    lines = []
    for row in rows:
        cells = [tag("th", row, scope="row")]
        for title in columns:
            ours, paper = cell_text(known[row, title]) if (row, title) in known else ("", "")
            cells.append(tag("td", ours, tag("small", paper), class_="n"))
        lines.append(cells)
    return boxed_table(name, caption, [column(""), *(column(title, numeric=True) for title in columns)], lines)


def _notes(experiment: Experiment, scale: Scale, outcomes: Outcomes, problem: str | None) -> Iterator[Markup]:
    yield tag("h2", "Differences from the paper")
    sentences = [scale.sentence] if outcomes and (scale.changes or not scale.full) else []
    sentences += [experiment.note] if experiment.note else []
    counts = Counter(sentence for outcome in outcomes.values() for sentence in outcome.differences)
    for sentence, count in counts.items():
        which = "" if count == len(outcomes) else f" ({count} of {len(outcomes)} trainings)"
        sentences.append(f"{sentence[:1].upper()}{sentence[1:]}{which}.")
    sentences += [f"{name}: {'; '.join(outcome.notes)}." for name, outcome in outcomes.items() if outcome.notes]
    yield tag("ul", *(tag("li", sentence) for sentence in sentences or ["None known."]))
    failed = {name: outcome.problems for name, outcome in outcomes.items() if outcome.problems}
    if failed or problem:
        yield tag("h2", "What failed")
        pictures = [tag("li", problem)] if problem else []
        yield tag(
            "ul", *pictures, *(tag("li", tag("code", name), f": {'; '.join(why)}") for name, why in failed.items())
        )


def _trainings(outcomes: Outcomes, below: Path) -> Iterator[Markup]:
    if not outcomes:
        return
    head = [column("training"), column("chosen on held-out data"), column("finished runs", numeric=True)]
    rows = []
    for name, outcome in outcomes.items():
        folders = [os.path.relpath(folder, below) for folder in outcome.folders.values()]
        shown = join([tag("code", name), tag("small", folders[0])]) if folders else tag("code", name)
        rows.append([tag("th", shown, scope="row"), tag("td", outcome.chosen), number_cell(str(len(folders)))])
    yield tag("h2", "Trainings")
    yield boxed_table("Trainings", "Every run folder has its settings, curves and weights.", head, rows)
