"""Output of commands: JSON, tables and progress bars."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from isda._utils.files import write_text
from isda._utils.text import escape_control_characters
from isda.engine.digests import json_text


def show(record: Any, destination: str | None, tables: Callable[[], None]) -> None:
    """Print tables, or JSON where it is asked for.

    Args:
        record: what the tables hold, as plain values.
        destination: None for tables only; "-" for JSON on the standard output and nothing else; else a file that gets
            the JSON beside the tables. Its folder is made.
        tables: prints them.
    """
    text = json_text(record, indent=2) + "\n"
    if destination == "-":
        sys.stdout.write(text)
        return
    tables()
    if destination is not None:
        write_text(Path(destination), text)


_Item = TypeVar("_Item")


def table_console(least: int = 0) -> Console:
    """A console as wide as the terminal; a pipe or file has no width, and 80 columns would break numbers over lines.

    Args:
        least: columns that a table needs for its numbers; a narrower terminal breaks its lines, and hides nothing.
    """
    console = Console()
    if not console.is_terminal:
        return Console(width=140)
    return console if console.width >= least else Console(width=least)


def plain_table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> Table:
    """A table of text whose first column is to the left and all others, numbers, to the right."""
    drawn = Table(
        title=Text(escape_control_characters(title), style="bold"),
        caption=Text(escape_control_characters(caption)) if caption else None,
        box=SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
    )
    for place, head in enumerate(heads):
        drawn.add_column(Text(escape_control_characters(head)), justify="right" if place else "left")
    for cells in rows:
        drawn.add_row(*(Text(escape_control_characters(cell)) for cell in cells))
    return drawn


def track_progress(items: Iterable[_Item], what: str, total: int | None = None) -> Iterator[_Item]:
    """The items, with a bar on the terminal while they come."""
    if not sys.stderr.isatty():
        yield from items
        return
    yield from track(items, what, total=total, console=Console(stderr=True), transient=True)
