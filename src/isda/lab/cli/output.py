"""Output of commands: JSON, tables and progress bars."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO, TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from isda.lab.files import json_text, write_text
from isda.lab.text import escape_control_characters


def print_escaped(text: str, file: TextIO | None = None) -> None:
    """Print text with control characters escaped, to the standard output by default."""
    print(escape_control_characters(text), file=file)


def show(record: Any, destination: str | None, tables: Callable[[], None]) -> None:
    """Print tables, write JSON, or both.

    Args:
        record: the content of the tables as plain values.
        destination: None for tables only; "-" for JSON on the standard output and nothing else; else a file for the
            JSON beside the tables, whose folder is created.
        tables: prints the tables.
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
    """A console as wide as the terminal; 140 columns for a pipe or file, as 80 would wrap numbers.

    Args:
        least: columns that a table needs; a narrower terminal wraps its lines.
    """
    console = Console()
    if not console.is_terminal:
        return Console(width=140)
    return console if console.width >= least else Console(width=least)


def plain_table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> Table:
    """A table whose first column is left-aligned and all others, numbers, right-aligned."""
    table = Table(
        title=Text(escape_control_characters(title), style="bold"),
        caption=Text(escape_control_characters(caption)) if caption else None,
        box=SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
    )
    for index, head in enumerate(heads):
        table.add_column(Text(escape_control_characters(head)), justify="right" if index else "left")
    for cells in rows:
        table.add_row(*(Text(escape_control_characters(cell)) for cell in cells))
    return table


def check_replaceable(page: Path, command: str, option: str = "--out", overwrite: bool | None = None) -> None:
    """Raise a ValueError if a page would replace a file that is not a page of the same command.

    Args:
        page: where it is to be written.
        command: that writes it, such as "isda report"; its pages name it above the heading.
        option: that names the page.
        overwrite: whether to replace any file; None for a command without this option.
    """
    if overwrite or not page.is_file() or f'<p class="kicker">{command}</p>'.encode() in page.read_bytes():
        return
    flag = "" if overwrite is None else ", or add --overwrite to replace it"
    raise ValueError(f"{page} exists and is not a page of `{command}`; choose another {option}{flag}")


def print_page(console: Console, page: Path) -> None:
    """Print the path of a page in one line."""
    console.print(Text(escape_control_characters(f"The page is {page}")), soft_wrap=True)


def track_progress(items: Iterable[_Item], what: str, total: int | None = None) -> Iterator[_Item]:
    """Iterate over the items with a progress bar on the terminal."""
    if not sys.stderr.isatty():
        yield from items
        return
    yield from track(items, what, total=total, console=Console(stderr=True), transient=True)
