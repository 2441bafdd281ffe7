"""The command ``isda report``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from isda.cli.runtime_options import JsonFile

if TYPE_CHECKING:
    from isda.engine.run_records import RunRecord
    from isda.engine.tuning.records import SearchRecord
    from isda.report.summary import Comparison


def report(
    runs: tyro.conf.Positional[tuple[Path, ...]],
    *,
    out: Path = Path("report.html"),
    title: str | None = None,
    accuracy: bool = False,
    json: JsonFile = None,
) -> None:
    """Compare finished and unfinished runs: a table in the terminal, and all details in one HTML page.

    Args:
        runs: run folders, or folders that hold run folders at any depth; for folders of `isda tune` the search as well.
        out: the page, a self-contained file.
        title: its heading.
        accuracy: show the accuracy beside the error.
        json: a file for the result as JSON.
    """
    from isda.cli.output import show
    from isda.engine.run_records import find_runs, run_folders
    from isda.engine.tuning.records import find_searches

    searches = find_searches(runs)
    # A folder may hold a search whose final runs have not started.
    with_runs = [path for path in runs if any(run_folders(path)) or not find_searches([path])]
    records = find_runs(with_runs) if with_runs or not searches else []
    comparisons = write_page(records, searches, runs, out, title, accuracy=accuracy)
    record = [comparison.as_json() for comparison in comparisons]
    show(record, json, lambda: print_tables(searches, comparisons, out, accuracy=accuracy))


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
    import os
    import shlex

    from isda.report.page import write_report
    from isda.report.summary import summarise

    *inputs, page = (Path(os.path.relpath(path)).as_posix() for path in (*paths, out))
    words = ["isda", "report", *inputs, "--out", page, *(("--title", title) if title else ())]
    words += ["--accuracy"] if accuracy else []
    write_report(runs, out, title, shlex.join(words), searches, accuracy=accuracy)
    return summarise(runs) if runs else []


def print_tables(
    searches: Sequence[SearchRecord],
    comparisons: Sequence[Comparison] = (),
    page: Path | None = None,
    *,
    accuracy: bool = False,
) -> None:
    """Print the tables of searches and comparisons, and the path of the page."""
    from isda.cli.output import print_page, table_console
    from isda.report.terminal_tables import comparison_table, search_table

    console = table_console()
    for search in searches:
        console.print(search_table(search))
    for comparison in comparisons:
        console.print(comparison_table(comparison, accuracy=accuracy))
    if page is not None:
        print_page(console, page)
