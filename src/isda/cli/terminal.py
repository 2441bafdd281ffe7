"""The console that tables are printed on, plain tables, and a bar for what takes its time."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from isda.plain_text import harmless

__all__ = ["plain_table", "table_console", "tracked"]

T = TypeVar("T")


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
        title=Text(harmless(title), style="bold"),
        caption=Text(harmless(caption)) if caption else None,
        box=SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
    )
    for place, head in enumerate(heads):
        drawn.add_column(Text(harmless(head)), justify="right" if place else "left")
    for cells in rows:
        drawn.add_row(*(Text(harmless(cell)) for cell in cells))
    return drawn


def tracked(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """The items, with a bar on the terminal while they come."""
    if not sys.stderr.isatty():
        yield from items
        return
    yield from track(items, what, total=total, console=Console(stderr=True), transient=True)
