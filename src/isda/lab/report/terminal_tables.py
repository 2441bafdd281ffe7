"""Comparisons and searches as tables for the terminal (rich)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from isda.lab.engine.search import SearchRecord
from isda.lab.report.across_page import Across
from isda.lab.report.figure_tables import FigureTable
from isda.lab.report.searches import figure_text, outcome, point_text, search_caption, trial_note
from isda.lab.report.statistics import mean_std
from isda.lab.report.summary import Comparison
from isda.lab.report.wording import (
    accuracy_text,
    caption,
    count_text,
    difference_text,
    interval_notes,
    intervals_text,
    is_error,
    plus_minus,
)
from isda.lab.text import escape_control_characters


def text_table(title: str, heads: Iterable[str], caption: str = "", left: Sequence[int] = (0,)) -> Table:
    """A table without rows; the columns `left` are left-justified, the others right-justified."""
    table = Table(
        title=_text(title, "bold"),
        caption=_text(caption) if caption else None,
        box=SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
    )
    for index, head in enumerate(heads):
        table.add_column(_text(head), justify="left" if index in left else "right")
    return table


def add_text_row(table: Table, cells: Iterable[str], style: str = "") -> None:
    """Add a row of text."""
    table.add_row(*(_text(cell, style) for cell in cells))


def _text(text: str, style: str = "") -> Text:
    return Text(escape_control_characters(text), style=style)


def comparison_table(comparison: Comparison, *, accuracy: bool = False) -> Table:
    """Each method's metric over seeds and paired difference; the caption explains them."""
    figure = comparison.figure
    unit = f", {figure.difference_unit}" if figure.difference_unit else ""
    paired = any(method.difference for method in comparison.methods)
    unfinished = any(method.unfinished for method in comparison.methods)
    accuracy = accuracy and is_error(figure)
    heads = ["method", "seeds", figure.heading]
    heads += ["accuracy, %"] if accuracy else []
    heads += [f"difference{unit}"] if paired else []
    heads += [f"from ISDA{unit}"] if comparison.tells_isda_apart else []
    heads += ["unfinished"] if unfinished else []
    left = (0, len(heads) - 1) if unfinished else (0,)
    table = text_table(comparison.title, heads, caption(comparison), left)
    for method in comparison.methods:
        value = plus_minus(*method.value, figure.digits) if method.value else ""
        cells = [method.label, count_text(method), value]
        if accuracy:
            cells.append(accuracy_text(method.value, figure))
        if paired:
            cells.append(difference_text(method.difference, figure.digits))
        if comparison.tells_isda_apart:
            cells.append(difference_text(method.from_isda, figure.digits))
        if unfinished:
            cells.append(", ".join(f"seed {run.seed} at epoch {run.epoch}" for run in method.unfinished))
        add_text_row(table, cells)
    return table


def figures_table(comparison: FigureTable) -> Table:
    """Each method's figures over seeds, and differences of the first, from a CSV file; the caption explains them."""
    primary, *others = comparison.figures
    family, parts, overall = (
        comparison.family(primary),
        comparison.isda_family(primary),
        comparison.isda_overall(primary),
    )
    base = comparison.control
    words = [
        f"{primary}: {f'Δ vs {base}' if base else 'all pairs'}, {intervals_text(family)}.",
        *interval_notes(family),
    ]
    if base is None:
        words += [f"{name}: {difference_text(interval)}." for name, interval in family.items()]
    if len(parts) > 1:
        words.append("From ISDA: the method − the same one without +isda, simultaneous intervals of their own.")
    if overall is not None:
        words.append(
            f"From ISDA over all of these: {difference_text(overall[0])} (Student, {overall[1]} pairs of runs)."
        )
    if others:
        words.append("Differences of the other figures, families of their own, are in the result of --json.")
    heads = ["method", "seeds", primary, *(["Δ", "p"] if base else []), *(["from ISDA"] if parts else []), *others]
    table = text_table(comparison.title, heads, " ".join(words))
    for method, runs in comparison.values.items():
        p = family.p_value(method)
        cells = [method, str(len(runs)), _mean_text(comparison, method, primary)]
        cells += [difference_text(family.shown(method)), "" if p is None else f"{p:.2g}"] if base else []
        cells += [difference_text(parts.shown(method))] if parts else []
        add_text_row(table, [*cells, *(_mean_text(comparison, method, figure) for figure in others)])
    return table


def _mean_text(comparison: FigureTable, method: str, figure: str) -> str:
    values = list(comparison.by_seed(figure)[method].values())
    return plus_minus(*mean_std(values)) if values else ""


def across_table(across: Across) -> Table:
    """Effects and ranks of methods over several problems."""
    table = text_table(f"{len(across.problems)} problems", Across.HEADS, across.caption())
    for cells in across.rows():
        add_text_row(table, cells)
    return table


def search_table(search: SearchRecord) -> Table:
    """Every trial with its point and metric; the caption says what was chosen."""
    heads = ("method", "tried", search.figure.heading, "")
    outcomes = " ".join([*map(outcome, search.methods), search_caption(search)])
    table = text_table(f"Search on {search.title}", heads, outcomes, left=(0, 1, 3))
    for method in search.methods:
        for trial in method.trials:
            note = trial_note(trial, method)
            cells = [method.method, point_text(trial.point), figure_text(trial, search.figure), note]
            add_text_row(table, cells, "bold" if "chosen" in note else "")
        table.add_section()
    return table
