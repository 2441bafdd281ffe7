"""The page of a reproduced table or figure: values, differences, deviations from the paper, failures."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from isda.analysis.pages import write_page
from isda.report.markup import Markup, boxed_table, column, join, number_cell, tag
from isda.report.wording import number, plus_minus
from isda.reproduce.experiment import Experiment
from isda.reproduce.results import CellResult, Gain
from isda.reproduce.training import Scale, TrainingOutcome

GAIN_HEADS = ("", "column", "seeds", "ours", "paper")
STYLE = "small { display: block; opacity: 0.75; } caption span::before { content: none; }"
"""The paper's numbers below ours; tables of the page have no numbers, which would be taken for the paper's."""
LARGE = 1e4
"""From here on counts are written in millions."""


def cell_text(answer: CellResult) -> tuple[str, str]:
    """Ours, and the paper's."""
    paper = answer.paper.printed if answer.paper else ""
    if answer.value is None:
        return ("failed" if answer.problem else "", paper)
    mean, std = answer.value
    ours = f"{mean / 1e6:,.2f}M" if mean >= LARGE else plus_minus(mean, std)
    return (f"{ours} ({answer.seeds} seeds, some failed)" if answer.problem else ours, paper)


def table_caption(scale: Scale, seeds: int) -> str:
    """What the numbers mean."""
    many = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    return f"Ours ({many}), below it the paper's. Scale {scale.name}: {scale.told}."


def gain_rows(gains: Sequence[Gain]) -> Iterator[list[str]]:
    """The cells of the table of differences, as text."""
    for gain in gains:
        paper = number(gain.paper, sign=True) if gain.paper is not None else ""
        yield [gain.row, gain.column, str(gain.seeds), plus_minus(*gain.ours, sign=True), paper]


def trainings_by_difference(made: Mapping[str, TrainingOutcome]) -> dict[str, list[str]]:
    """What is not as in the paper, each with the trainings that it is true of."""
    found: dict[str, list[str]] = {}
    for name, outcome in made.items():
        for sentence in outcome.differences:
            found.setdefault(sentence, []).append(name)
    return found


def write_table_page(
    path: Path,
    experiment: Experiment,
    scale: Scale,
    seeds: int,
    answers: Sequence[CellResult],
    gains: Sequence[Gain],
    made: Mapping[str, TrainingOutcome],
    pages: Sequence[Path],
    command: str,
) -> None:
    """Write the page of a table or figure.

    Args:
        path: of the page.
        experiment: which it is.
        scale: of the runs.
        seeds: asked for.
        answers: the cells of a table; none for a figure.
        gains: its differences.
        made: the trainings.
        pages: what the analysis of a figure has written.
        command: that made it.
    """
    parts: list[str] = []
    if answers:
        parts.append(_table(experiment.name, answers, table_caption(scale, seeds)))
    if gains:
        head = [column(name, numeric=place > 1) for place, name in enumerate(GAIN_HEADS)]
        rows = [
            [tag("th", line[0], scope="row"), tag("td", line[1]), *map(number_cell, line[2:])]
            for line in gain_rows(gains)
        ]
        together = f", all {len(gains)} together 95% (Bonferroni)" if len(gains) > 1 else " (95%)"
        told = (
            "The row's figure minus that of the same without ISDA (of the plain method, for rivals) on the same seeds, "
            f"± half of Student's interval{together}; beside it the difference of the paper's means."
        )
        parts.append(tag("h2", "Differences"))
        parts.append(boxed_table("Differences", told, head, rows))
    if pages:
        links = [tag("li", tag("a", page.name, href=os.path.relpath(page, path.parent))) for page in pages]
        parts += [tag("h2", "Pictures"), tag("ul", *links)]
    parts += [*_words(experiment, scale, made), *_trainings(made, path.parent)]
    number_of = experiment.name.replace("-", " ").capitalize()
    title = f"{number_of}, scale {scale.name}"
    write_page(path, "isda reproduce", title, experiment.title, parts, command, STYLE)


def _table(name: str, answers: Sequence[CellResult], told: str) -> Markup:
    rows = dict.fromkeys(answer.row for answer in answers)
    columns = list(dict.fromkeys(answer.column for answer in answers))
    known = {(answer.row, answer.column): answer for answer in answers}
    lines = []
    for row in rows:
        cells = [tag("th", row, scope="row")]
        for title in columns:
            ours, paper = cell_text(known[row, title]) if (row, title) in known else ("", "")
            cells.append(tag("td", ours, tag("small", paper), class_="n"))
        lines.append(cells)
    return boxed_table(name, told, [column(""), *(column(title, numeric=True) for title in columns)], lines)


def _words(experiment: Experiment, scale: Scale, made: Mapping[str, TrainingOutcome]) -> Iterator[Markup]:
    yield tag("h2", "What is not as in the paper")
    sentences = [f"Scale {scale.name}: {scale.told}."] if not scale.full else []
    sentences += [experiment.note] if experiment.note else []
    for sentence, names in trainings_by_difference(made).items():
        which = "" if len(names) == len(made) else f" ({len(names)} of {len(made)} trainings)"
        sentences.append(f"{sentence[:1].upper()}{sentence[1:]}{which}.")
    sentences += [f"{name}: {'; '.join(outcome.notes)}." for name, outcome in made.items() if outcome.notes]
    yield tag("ul", *(tag("li", sentence) for sentence in sentences or ["Nothing that we know of."]))
    broken = {name: outcome.problems for name, outcome in made.items() if outcome.problems}
    if broken:
        yield tag("h2", "What failed")
        yield tag("ul", *(tag("li", tag("code", name), f": {'; '.join(told)}") for name, told in broken.items()))


def _trainings(made: Mapping[str, TrainingOutcome], below: Path) -> Iterator[Markup]:
    if not made:
        return
    head = [column("training"), column("chosen on held-out data"), column("finished runs", numeric=True)]
    rows = []
    for name, outcome in made.items():
        places = [os.path.relpath(folder, below) for folder in outcome.folders.values()]
        shown = join([tag("code", name), tag("small", places[0])]) if places else tag("code", name)
        rows.append([tag("th", shown, scope="row"), tag("td", outcome.chosen), number_cell(str(len(places)))])
    yield tag("h2", "Trainings")
    yield boxed_table("Trainings", "Every run folder has its settings, curves and weights.", head, rows)
