"""The command ``isda report``."""

from pathlib import Path

import tyro

from isda.cli.options import JsonFile

__all__ = ["report"]


def report(
    runs: tyro.conf.Positional[tuple[Path, ...]],
    *,
    out: Path = Path("report.html"),
    title: str | None = None,
    json: JsonFile = None,
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

    from rich.text import Text

    from isda.cli.output import show
    from isda.cli.terminal import table_console
    from isda.engine.folder.reading import find_runs
    from isda.plain_text import harmless
    from isda.report.page import write_report
    from isda.report.summary import summarise
    from isda.report.table import table

    found = find_runs(runs)
    places = [Path(os.path.relpath(path)).as_posix() for path in (*runs, out)]
    words = ["isda", "report", *places[:-1], "--out", places[-1], *(("--title", title) if title else ())]
    write_report(found, out, title, shlex.join(words))
    comparisons = summarise(found)

    def tables() -> None:
        console = table_console()
        for comparison in comparisons:
            console.print(table(comparison))
        console.print(Text(harmless(f"The page is {out}")), soft_wrap=True)

    show([comparison.as_json() for comparison in comparisons], json, tables)
