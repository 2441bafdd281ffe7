"""Tables on the page: a box that scrolls by itself, and the cells in it."""

from __future__ import annotations

from collections.abc import Sequence

from isda.report.markup import Markup, tag

__all__ = ["boxed_table", "column", "name_cell", "number_cell"]


def boxed_table(name: str, told: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    """A table in a box that scrolls by itself, which `name` announces; the cells are td or th elements."""
    drawn = tag(
        "table",
        tag("caption", tag("span", told)),
        tag("thead", tag("tr", *head)),
        tag("tbody", *(tag("tr", *cells) for cells in rows)),
    )
    return tag("div", drawn, class_="scroll", tabindex=0, role="region", aria_label=name)


def column(text: str, *, numeric: bool = False) -> Markup:
    """The head of a column."""
    return tag("th", text, scope="col", class_="n" if numeric else None)


def name_cell(text: str) -> Markup:
    """The name that a row begins with."""
    return tag("th", tag("code", text), scope="row")


def number_cell(text: str, *, clear: bool = False) -> Markup:
    """A number; one that is clear is in bold."""
    return tag("td", text, class_="n clear" if clear else "n")
