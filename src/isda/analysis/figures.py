"""Figures of matplotlib inside the pages of analyses: as SVG, the same bytes for the same figure."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from isda import __version__
from isda.files import write_text
from isda.report.document import document
from isda.report.markup import Markup, join, tag

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["COLOURS", "drawn", "new_figure", "write_page"]

COLOURS = ("#63686f", "#1a55d9", "#d65d0e", "#2b8a3e", "#9c36b5", "#c92a2a", "#0b7285", "#e67700", "#5c940d", "#862e9c")
"""The first is the baseline's, as in reports; told apart by markers and dashes too."""


def new_figure(panels: int = 1, columns: int = 2, size: tuple[float, float] = (4.6, 3.4)) -> tuple[Figure, list[Axes]]:
    """A figure with panels in rows of ``columns``, each of ``size`` inches."""
    from matplotlib.figure import Figure

    across = min(panels, columns)
    down = -(-panels // across)
    figure = Figure(figsize=(size[0] * across, size[1] * down), layout="constrained")
    axes = [figure.add_subplot(down, across, place + 1) for place in range(panels)]
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
        one.tick_params(labelsize=8)
    return figure, axes


def drawn(figure: Figure, caption: str) -> Markup:
    """The figure as an element of a page, on white: its colours are made for that."""
    import matplotlib

    buffer = io.BytesIO()
    # Without these, every drawing of the same figure has other ids and another date.
    with matplotlib.rc_context({"svg.hashsalt": "isda", "svg.fonttype": "none", "font.family": "sans-serif"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue().decode()
    picture = Markup(text[text.index("<svg") :].replace("<svg ", '<svg class="drawn" role="img" ', 1))
    return tag("figure", picture, tag("figcaption", caption))


def write_page(
    path: Path, kicker: str, title: str, lede: str, parts: Iterable[str], command: str, style: str = ""
) -> None:
    """Write one self-contained page: a heading, what it shows, the command that made it; ``style`` is further CSS."""
    made = join(["Made by ", tag("code", command), f" with isda {__version__}."])
    header = tag("header", tag("p", kicker, class_="kicker"), tag("h1", title), tag("p", lede, class_="lede"))
    style = f".drawn {{ background: #fff; max-width: 100%; height: auto; }} {style}"
    text = document(title, header, tag("main", *parts), tag("footer", tag("p", made)), style=style)
    write_text(path, text)
