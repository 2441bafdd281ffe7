"""Writing HTML and SVG: a tag with its attributes and children, everything escaped that is not markup already."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

__all__ = ["Markup", "join", "tag"]

VOID = ("img", "input", "meta")
"""Elements that HTML closes by itself."""


class Markup(str):
    """Text that is markup already and must not be escaped again."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: object) -> Markup:
    """One element; attributes that are None are left out, `class_` and `data_name` become class and data-name.

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
    """The parts one after another, escaped where they are plain text."""
    return Markup("".join(part if isinstance(part, Markup) else escape(part) for part in parts))
