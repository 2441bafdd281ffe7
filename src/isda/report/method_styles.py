"""How a method looks in every chart: a colour, a dash and a marker, so that no two differ by colour alone."""

from __future__ import annotations

from isda.report.markup import Markup, tag

__all__ = ["COLOURS", "classes", "dash", "marker", "swatch"]

COLOURS = 6
"""How many colours style.css has; the first, a grey, is the baseline's."""

DASHES = (None, "8 3", "2.5 2.5", "10 3 2 3", "14 4", "5 2 1.5 2")
MARKERS = (
    "M-1,0a1,1 0 1 0 2,0a1,1 0 1 0 -2,0z",
    "M-.9,-.9h1.8v1.8h-1.8z",
    "M0,-1.2L1.15,.85H-1.15z",
    "M0,-1.35L1.35,0L0,1.35L-1.35,0z",
    "M0,1.2L1.15,-.85H-1.15z",
    "M-.4,-1.2h.8v.8h.8v.8h-.8v.8h-.8v-.8h-.8v-.8h.8z",
)


def classes(style: int) -> str:
    """The CSS classes of a method: its colour, and a name by which the key shows and hides it."""
    return f"c{style % COLOURS} m{style}"


def dash(style: int) -> str | None:
    """The stroke-dasharray of a method's mean; shifted on each round through the colours."""
    return DASHES[_second(style)]


def marker(style: int, x: float, y: float, size: float = 4.0) -> Markup:
    """The method's marker with its centre at (x, y)."""
    return tag(
        "path", class_="marker", d=MARKERS[_second(style)], transform=f"translate({x:.1f} {y:.1f}) scale({size})"
    )


def swatch(style: int) -> Markup:
    """A short piece of the method's line, for keys and tables beside its name."""
    line = tag("path", class_="mean", d="M1,6H31", stroke_dasharray=dash(style))
    return tag(
        "svg",
        tag("g", line, marker(style, 16, 6, 3.6), class_=f"c{style % COLOURS}"),
        class_="swatch",
        viewBox="0 0 32 12",
        width=32,
        height=12,
        aria_hidden="true",
    )


def _second(style: int) -> int:
    return (style + style // COLOURS) % len(DASHES)
