"""The frame of every page: one HTML file with its style inside, which needs no network."""

from __future__ import annotations

from importlib.resources import files

from isda.report.markup import Markup, tag

__all__ = ["asset", "document"]


def asset(name: str) -> str:
    """The text of a file of this room, such as style.css."""
    return files("isda.report").joinpath(name).read_text(encoding="utf-8")


def document(title: str, *body: str, style: str = "") -> str:
    """A whole page.

    Args:
        title: of the window.
        body: what it holds, markup or text.
        style: rules that it needs beside those of every page.

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
