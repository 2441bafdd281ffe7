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
    json: JsonFile = None,
) -> None:
    """Compare finished and unfinished runs: a table here, and everything about them in one HTML page.

    Args:
        runs: run folders, or folders that hold run folders at any depth; of those of `isda tune` the search as well.
        out: the page, one file that can be opened and passed on as it is.
        title: its heading.
        json: also write the table to this file as JSON; "-" writes JSON to the standard output and no table.
    """
    from isda.cli.output import show
    from isda.engine.run_records import find_runs, run_folders
    from isda.engine.tuning.records import find_searches

    searches = find_searches(runs)
    # A folder may hold a search whose final runs are not begun.
    holding = [path for path in runs if any(run_folders(path)) or not find_searches([path])]
    found = find_runs(holding) if holding or not searches else []
    comparisons = write_page(found, searches, runs, out, title)
    record = [comparison.as_json() for comparison in comparisons]
    show(record, json, lambda: print_tables(searches, comparisons, out))


def write_page(
    runs: Sequence[RunRecord],
    searches: Sequence[SearchRecord],
    paths: Sequence[Path],
    out: Path,
    title: str | None = None,
) -> list[Comparison]:
    """Write the page; returns the comparisons that it shows.

    Args:
        runs: what it shows.
        searches: and these.
        paths: that the command names in the page finds them at.
        out: the page.
        title: its heading.
    """
    import os
    import shlex

    from isda.report.page import write_report
    from isda.report.summary import summarise

    places = [Path(os.path.relpath(path)).as_posix() for path in (*paths, out)]
    words = ["isda", "report", *places[:-1], "--out", places[-1], *(("--title", title) if title else ())]
    write_report(runs, out, title, shlex.join(words), searches)
    return summarise(runs) if runs else []


def print_tables(
    searches: Sequence[SearchRecord], comparisons: Sequence[Comparison] = (), page: Path | None = None
) -> None:
    """Print what was tried, what was compared, and where the page is."""
    from rich.text import Text

    from isda._utils.text import escape_control_characters
    from isda.cli.output import table_console
    from isda.report.terminal_tables import comparison_table, search_table

    console = table_console()
    for search in searches:
        console.print(search_table(search))
    for comparison in comparisons:
        console.print(comparison_table(comparison))
    if page is not None:
        console.print(Text(escape_control_characters(f"The page is {page}")), soft_wrap=True)
