"""The command ``isda report``."""

from pathlib import Path
from typing import Annotated

import tyro

__all__ = ["report"]


def report(
    runs: tyro.conf.Positional[tuple[Path, ...]],
    *,
    out: Path = Path("report.html"),
    title: str | None = None,
    json: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None,
) -> None:
    """Compare finished and unfinished runs: a table here, and everything about them in one HTML page.

    Args:
        runs: run folders, or folders that hold run folders at any depth.
        out: the page, one file that can be opened and passed on as it is.
        title: its heading.
        json: also write the table to this file as JSON; "-" writes JSON to the standard output and no table.
    """
    import os
    import shlex
    from json import dumps

    from rich.text import Text

    from isda.report.page import write_report
    from isda.report.runs import find_runs
    from isda.report.summary import summarise
    from isda.report.table import table
    from isda.terminal import table_console

    found = find_runs(runs)
    places = [Path(os.path.relpath(path)).as_posix() for path in (*runs, out)]
    words = ["isda", "report", *places[:-1], "--out", places[-1], *(("--title", title) if title else ())]
    write_report(found, out, title, shlex.join(words))
    comparisons = summarise(found)
    text = dumps([comparison.as_json() for comparison in comparisons], indent=2)
    if json == "-":
        print(text)
        return
    console = table_console()
    for comparison in comparisons:
        console.print(table(comparison))
    console.print(Text(f"The page is {out}"), soft_wrap=True)
    if json is not None:
        Path(json).write_text(text + "\n", encoding="utf-8")
