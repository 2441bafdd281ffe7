"""One table, three writers: for the terminal (rich), for pages (HTML) and as records (JSON)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from isda.lab.report.wording import counted, plus_minus, sentence
from isda.lab.text import escape_control_characters

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup
    from rich.table import Table as RichTable


class Estimate(NamedTuple):
    """A number of a table, with its standard deviation or half the width of its interval."""

    mean: float
    spread: float | None = None
    digits: int = 2
    sign: bool = False
    strong: bool = False
    shade: float = 0.0
    """Of the background on pages, from 0 to 1."""

    def __str__(self) -> str:
        """As in `plus_minus`."""
        return plus_minus(self.mean, self.spread, self.digits, sign=self.sign)


Cell = str | int | Estimate | None


@dataclass(frozen=True)
class Column:
    """A column of text or whole numbers, or of estimates, whose records have ``key_mean`` and ``key_spread``."""

    key: str
    heading: str
    spread: str | None = None
    """What the spread of estimates is, such as "std"; None for other columns."""


@dataclass(frozen=True)
class Table:
    """A table of text and numbers; columns of text are left-justified, columns of numbers right-justified.

    Example:
        >>> columns = [Column("method", "method"), Column("error", "error, %", "std")]
        >>> table = Table("Errors", columns, [["isda", Estimate(6.1, 0.5)]])
        >>> table.records()
        [{'method': 'isda', 'error_mean': 6.1, 'error_std': 0.5}]
    """

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    compact: bool = False
    """On pages, whether it is as narrow as its numbers."""

    def is_numeric(self, index: int) -> bool:
        """Whether a column holds numbers."""
        cells = [row[index] for row in self.rows if row[index] is not None]
        return self.columns[index].spread is not None or (bool(cells) and all(isinstance(cell, int) for cell in cells))

    def records(self) -> list[dict[str, Any]]:
        """The rows as plain values."""
        return [_record(self.columns, row) for row in self.rows]

    def rich(self) -> RichTable:
        """The table for a terminal."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(
            title=Text(escape_control_characters(self.title), style="bold"),
            caption=Text(escape_control_characters(self.caption)) if self.caption else None,
            box=SIMPLE_HEAD,
            title_justify="left",
            caption_justify="left",
        )
        for index, column in enumerate(self.columns):
            table.add_column(Text(column.heading), justify="right" if self.is_numeric(index) else "left")
        for row in self.rows:
            words = ["" if cell is None else escape_control_characters(str(cell)) for cell in row]
            styles = ["bold" if isinstance(cell, Estimate) and cell.strong else "" for cell in row]
            table.add_row(*map(Text, words, styles))
        return table

    def html(self) -> Markup:
        """The table for a page."""
        macros: Any = templates().get_template("parts.html").module
        html: Markup = macros.table(self)
        return html


def _record(columns: Sequence[Column], row: Sequence[Cell]) -> dict[str, Any]:
    record: dict[str, Any] = {}
    for column, cell in zip(columns, row, strict=True):
        if column.spread is None:
            record[column.key] = cell
        else:
            mean, spread = (cell.mean, cell.spread) if isinstance(cell, Estimate) else (None, None)
            record |= {f"{column.key}_mean": mean, f"{column.key}_{column.spread}": spread}
    return record


@cache
def templates() -> Environment:
    """The templates of pages."""
    from jinja2 import Environment, PackageLoader

    from isda.lab.report import charts

    environment = Environment(loader=PackageLoader("isda.lab.report", "."), autoescape=True, trim_blocks=True)
    environment.filters |= {"sentence": sentence, "counted": counted, "relative_to": os.path.relpath}
    environment.globals["charts"] = charts
    return environment
