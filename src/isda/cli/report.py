"""The command ``isda report``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from isda.cli.options import JsonFile

if TYPE_CHECKING:
    from isda.engine.folder.reading import RunRecord
    from isda.engine.tuning.record import Search
    from isda.report.summary import Comparison

__all__ = ["print_tables", "report", "write_page"]


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
    from isda.engine.folder.reading import find_runs, run_folders
    from isda.engine.tuning.record import find_searches

    searches = find_searches(runs)
    # A folder may hold a search whose final runs are not begun.
    holding = [path for path in runs if any(run_folders(path)) or not find_searches([path])]
    found = find_runs(holding) if holding or not searches else []
    comparisons = write_page(found, searches, runs, out, title)
    record = [comparison.as_json() for comparison in comparisons]
    show(record, json, lambda: print_tables(searches, comparisons, out))


def write_page(
    runs: Sequence[RunRecord], searches: Sequence[Search], paths: Sequence[Path], out: Path, title: str | None = None
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


def print_tables(searches: Sequence[Search], comparisons: Sequence[Comparison] = (), page: Path | None = None) -> None:
    """Print what was tried, what was compared, and where the page is."""
    from rich.text import Text

    from isda.cli.terminal import table_console
    from isda.plain_text import harmless
    from isda.report.searches.table import search_table
    from isda.report.table import table

    console = table_console()
    for search in searches:
        console.print(search_table(search))
    for comparison in comparisons:
        console.print(table(comparison))
    if page is not None:
        console.print(Text(harmless(f"The page is {page}")), soft_wrap=True)
