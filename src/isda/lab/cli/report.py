"""The command ``isda report``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from isda.lab.cli.runtime_options import JsonFile

if TYPE_CHECKING:
    from isda.lab.engine.run_records import RunRecord
    from isda.lab.engine.search import SearchRecord
    from isda.lab.report.figure_tables import FigureTable
    from isda.lab.report.statistics import Family
    from isda.lab.report.summary import Comparison


def report(
    runs: tyro.conf.Positional[tuple[Path, ...]],
    *,
    out: Path = Path("report.html"),
    title: str | None = None,
    across: bool = False,
    plan: float | None = None,
    accuracy: bool = False,
    overwrite: bool = False,
    json: JsonFile = None,
) -> None:
    """Compare finished and unfinished runs: a table in the terminal, and all details in one HTML page.

    Args:
        runs: run folders, or folders that hold run folders at any depth; for folders of `isda tune` the search as well.
            CSV files with the columns method, seed and figures are compared too, without a page.
        out: the page, a self-contained file.
        title: its heading.
        across: pool the differences of all comparisons, and rank the methods: a forest plot for each of them.
        plan: say how many seeds tell a difference of this size, in the unit of the figure.
        accuracy: show the accuracy beside the error.
        overwrite: replace the page even if it is a file that this command has not written.
        json: a file for the result as JSON.
    """
    from isda.lab.cli.output import check_replaceable, show
    from isda.lab.engine.run_records import find_runs, run_folders
    from isda.lab.engine.search import find_searches
    from isda.lab.report.figure_tables import read_figure_tables
    from isda.lab.report.planning import check_planned

    if plan is not None:
        check_planned(plan)
    files = [path for path in runs if path.suffix == ".csv" and path.is_file()]
    tables = [table for path in files for table in read_figure_tables(path)]
    folders = [path for path in runs if path not in files]
    searches = find_searches(folders)
    # A folder may hold a search whose final runs have not started.
    with_runs = [path for path in folders if any(run_folders(path)) or not find_searches([path])]
    records = find_runs(with_runs) if with_runs or not (searches or tables) else []
    page = out if across or folders or not tables else None
    if page is not None:
        check_replaceable(page, "isda report", overwrite=overwrite)
    if across:
        _report_across(records, tables, runs, out, title, json)
        return
    comparisons = write_page(records, searches, folders, out, title, accuracy=accuracy) if page else []
    record = [comparison.as_json() | plan_json(comparison.intervals, plan) for comparison in comparisons]
    record += [table.as_json() | plan_json(table.family(table.figures[0]), plan) for table in tables]
    show(record, json, lambda: print_tables(searches, comparisons, page, tables, plan, accuracy=accuracy))


def _report_across(
    runs: Sequence[RunRecord],
    tables: Sequence[FigureTable],
    paths: Sequence[Path],
    out: Path,
    title: str | None,
    json: str | None,
) -> None:
    from isda.lab.cli.output import print_page, show, table_console
    from isda.lab.report.across_page import compare_across, write_across
    from isda.lab.report.summary import summarise
    from isda.lab.report.terminal_tables import across_table

    found = compare_across([*(summarise(runs) if runs else []), *tables])
    write_across(found, out, title, command_line([*paths, "--across"], out, title))

    def print_table() -> None:
        console = table_console()
        console.print(across_table(found))
        print_page(console, out)

    show(found.as_json(), json, print_table)


def command_line(words: Sequence[Path | str], out: Path, title: str | None) -> str:
    """The command that makes a page, with paths relative to the working directory."""
    import os
    import shlex

    named = [
        Path(os.path.relpath(word)).as_posix() if isinstance(word, Path) else word for word in (*words, "--out", out)
    ]
    return shlex.join(["isda", "report", *named, *(("--title", title) if title else ())])


def plan_json(family: Family, plan: float | None) -> dict[str, Any]:
    """The entry about planned seeds; nothing if none are asked for."""
    from isda.lab.report.planning import plan_seeds

    if plan is None:
        return {}
    found = plan_seeds(family, plan)
    return {"plan": None if found is None else found.as_json()}


def write_page(
    runs: Sequence[RunRecord],
    searches: Sequence[SearchRecord],
    paths: Sequence[Path],
    out: Path,
    title: str | None = None,
    *,
    accuracy: bool = False,
) -> list[Comparison]:
    """Write the page; returns the comparisons that it shows.

    Args:
        runs: shown on the page.
        searches: shown on the page.
        paths: of the runs, for the command line that the page names.
        out: the page.
        title: its heading.
        accuracy: whether it shows the accuracy beside the error.
    """
    from isda.lab.report.page import write_report
    from isda.lab.report.summary import summarise

    command = command_line(paths, out, title) + (" --accuracy" if accuracy else "")
    write_report(runs, out, title, command, searches, accuracy=accuracy)
    return summarise(runs) if runs else []


def print_tables(
    searches: Sequence[SearchRecord],
    comparisons: Sequence[Comparison] = (),
    page: Path | None = None,
    tables: Sequence[FigureTable] = (),
    plan: float | None = None,
    *,
    accuracy: bool = False,
) -> None:
    """Print the tables of searches, comparisons and CSV files, planned seeds, and the path of the page."""
    from isda.lab.cli.output import print_page, table_console
    from isda.lab.report.terminal_tables import comparison_table, figures_table, search_table

    console = table_console()
    for search in searches:
        console.print(search_table(search))
    for comparison in comparisons:
        console.print(comparison_table(comparison, accuracy=accuracy))
        _print_plan(comparison.intervals, plan, comparison.figure.difference_unit)
    for table in tables:
        console.print(figures_table(table))
        _print_plan(table.family(table.figures[0]), plan, f"in {table.figures[0]}")
    if page is not None:
        print_page(console, page)


def _print_plan(family: Family, plan: float | None, unit: str) -> None:
    from isda.lab.cli.output import print_escaped
    from isda.lab.report.planning import plan_seeds

    if plan is not None:
        found = plan_seeds(family, plan)
        print_escaped(found.sentence(unit) if found else "A plan needs two methods with two seeds each.")
