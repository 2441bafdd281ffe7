"""The command ``isda report``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from isda.lab.cli.runtime_options import JsonFile

if TYPE_CHECKING:
    from isda.lab.engine.run_records import RunRecord
    from isda.lab.engine.search import SearchRecord
    from isda.lab.report import Comparison


def report(
    runs: tyro.conf.Positional[tuple[Path, ...]],
    *,
    out: Path = Path("report.html"),
    title: str | None = None,
    plan: float | None = None,
    overwrite: bool = False,
    json: JsonFile = None,
) -> None:
    """Compare finished and unfinished runs: a table in the terminal, and all details in one HTML page.

    Args:
        runs: run folders, or folders that hold run folders at any depth; for folders of `isda tune` the search as well.
        out: the page, a self-contained file.
        title: of its window, and the headline of a page with several comparisons.
        plan: say how many seeds tell a difference of this size, in the unit of the figure.
        overwrite: replace the page even if it is a file that this command has not written.
        json: a file for the result as JSON.
    """
    from isda.lab.cli.output import check_replaceable, show
    from isda.lab.engine.run_records import find_runs, run_folders
    from isda.lab.engine.search import find_searches
    from isda.lab.report.planning import check_planned

    if plan is not None:
        check_planned(plan)
    searches = find_searches(runs)
    # A folder may hold a search whose final runs have not started.
    with_runs = [path for path in runs if any(run_folders(path)) or not find_searches([path])]
    records = find_runs(with_runs) if with_runs or not searches else []
    check_replaceable(out, "isda report", overwrite=overwrite)
    comparisons = write_page(records, searches, runs, out, title, plan)
    record = [comparison.as_json(plan) for comparison in comparisons]
    show(record, json, lambda: print_tables(searches, comparisons, out, plan))


def command_line(words: Sequence[Path | str], out: Path, title: str | None) -> str:
    """The command that makes a page, with paths relative to the working directory."""
    import os
    import shlex

    named = [
        Path(os.path.relpath(word)).as_posix() if isinstance(word, Path) else word for word in (*words, "--out", out)
    ]
    return shlex.join(["isda", "report", *named, *(("--title", title) if title else ())])


def write_page(
    runs: Sequence[RunRecord],
    searches: Sequence[SearchRecord],
    paths: Sequence[Path],
    out: Path,
    title: str | None = None,
    plan: float | None = None,
) -> list[Comparison]:
    """Write the page; returns the comparisons that it shows.

    Args:
        runs: shown on the page.
        searches: shown on the page.
        paths: of the runs, for the command line that the page names.
        out: the page.
        title: of its window.
        plan: a difference that headlines name the seeds for.
    """
    from isda.lab.report import summarise
    from isda.lab.report.page import write_report

    command = command_line([*paths, *(["--plan", f"{plan:g}"] if plan is not None else [])], out, title)
    write_report(runs, out, title, command, searches, plan)
    return summarise(runs) if runs else []


def print_tables(
    searches: Sequence[SearchRecord],
    comparisons: Sequence[Comparison] = (),
    page: Path | None = None,
    plan: float | None = None,
) -> None:
    """Print the tables of searches and comparisons with their findings, planned seeds, and the path of the page."""
    from isda.lab.cli.output import print_escaped, print_page, table_console
    from isda.lab.report.planning import plan_seeds
    from isda.lab.report.searches import search_table

    console = table_console()
    for search in searches:
        console.print(search_table(search).rich())
    for comparison in comparisons:
        print_escaped(comparison.finding(plan))
        console.print(comparison.table().rich())
        if plan is not None:
            found = plan_seeds(comparison.family(), plan)
            unit = comparison.figure.difference_unit
            print_escaped(found.sentence(unit) if found else "A plan needs two methods with two seeds each.")
    if page is not None:
        print_page(console, page)
