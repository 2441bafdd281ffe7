"""HTML and SVG output: escaped elements, the page template, and table cells."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

VOID = ("img", "input", "meta")
"""Elements without an end tag."""


class Markup(str):
    """Text that is already escaped."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: object) -> Markup:
    """One element; attributes that are None are omitted, `class_` and `data_name` become class and data-name.

    Example:
        >>> tag("td", "a < b", tag("b", "c"), class_="wide", id=None)
        '<td class="wide">a &lt; b<b>c</b></td>'
    """
    words = [name]
    for key, value in attributes.items():
        if value is not None:
            words.append(f'{key.rstrip("_").replace("_", "-")}="{escape(str(value))}"')
    opened = f"<{' '.join(words)}>"
    return Markup(opened if name in VOID else f"{opened}{join(children)}</{name}>")


def join(parts: Iterable[str]) -> Markup:
    """The concatenated parts; plain text is escaped."""
    return Markup("".join(part if isinstance(part, Markup) else escape(part) for part in parts))


def asset(name: str) -> str:
    """The text of a file of this package, such as style.css."""
    return files("isda.lab.analysis").joinpath(name).read_text(encoding="utf-8")


def data_uri(image: bytes) -> str:
    """A PNG or WebP file as a data URI.

    Example:
        >>> data_uri(b"RIFF")
        'data:image/webp;base64,UklGRg=='
    """
    kind = "png" if image[1:4] == b"PNG" else "webp"
    return f"data:image/{kind};base64,{base64.b64encode(image).decode('ascii')}"


def document(title: str, *body: str, style: str = "") -> str:
    """A whole page.

    Args:
        title: of the window.
        body: markup or text.
        style: further CSS.

    Example:
        >>> document("A < B", "text").startswith("<!doctype html>")
        True
    """
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Markup(f"{asset('style.css')}\n{style}")),
    )
    return f"<!doctype html>\n{tag('html', head, tag('body', *body), lang='en')}\n"


def boxed_table(name: str, caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    """A table in a scrolling box with the accessible name `name`; the cells are td or th elements."""
    table = tag(
        "table",
        tag("caption", tag("span", caption)),
        tag("thead", tag("tr", *head)),
        tag("tbody", *(tag("tr", *cells) for cells in rows)),
    )
    return tag("div", table, class_="scroll", tabindex=0, role="region", aria_label=name)


def column(text: str, *, numeric: bool = False) -> Markup:
    """A column heading."""
    return tag("th", text, scope="col", class_="n" if numeric else None)


def name_cell(text: str) -> Markup:
    """The heading of a row, as code."""
    return tag("th", tag("code", text), scope="row")


def number_cell(text: str, *, clear: bool = False) -> Markup:
    """A number, in bold if `clear`."""
    return tag("td", text, class_="n clear" if clear else "n")
