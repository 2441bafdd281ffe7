"""The picture of docs/evidence/few-images.md: `python website/effects_picture.py` writes few-images.png.

Differences of error and negative log-likelihood to cross-entropy by setting, with their simultaneous intervals, as in
the tables of the page. The file carries them as text, by which a test sees whether it is current.
"""

from __future__ import annotations

import json

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from evidence_figures import FEW_IMAGES, PLANNED, ROOT, planned_settings

__all__ = ["PICTURE", "differences", "draw", "shown"]

PICTURE = ROOT / "docs" / "evidence" / "few-images.png"
KEY = "differences"
STYLES = dict(zip(PLANNED, (("#0b6fb8", "o"), ("#5aa9e6", "s"), ("#d1495b", "^"), ("#9a6fb0", "D")), strict=True))
"""Colour and marker of each method."""
Differences = dict[str, dict[str, dict[str, list[float]]]]
"""Mean and half width by figure, setting and method."""


def differences() -> Differences:
    """What is drawn."""
    found: Differences = {}
    for figure in FEW_IMAGES:
        for setting, table in planned_settings().items():
            for method in PLANNED:
                gap = table.family(figure).get(method) if method in table.values else None
                if gap is not None and gap.half_width is not None:
                    rounded = [round(value, 3) for value in (gap.mean, gap.half_width)]
                    found.setdefault(figure, {}).setdefault(setting, {})[method] = rounded
    return found


def _panel(axes: Axes, settings: dict[str, dict[str, list[float]]], title: str) -> None:
    """A row for each setting, from the top, and in it a line for each method."""
    for row, methods in enumerate(settings.values()):
        if row % 2:
            axes.axhspan(row - 0.5, row + 0.5, color="#f4f4f4", zorder=0)
        for place, (method, (mean, half)) in enumerate(methods.items()):
            colour, marker = STYLES[method]
            height = row + 0.18 * (place - (len(methods) - 1) / 2)
            axes.errorbar(mean, height, xerr=half, fmt=marker, color=colour, markersize=4, linewidth=1.4)
    axes.axvline(0, color="#666666", linewidth=0.9)
    axes.set_ylim(len(settings) - 0.5, -0.5)
    axes.set_title(f"{title} (left is better)", fontsize=10)
    axes.tick_params(labelsize=9)
    for side in axes.spines.values():
        side.set_color("#cccccc")


def draw() -> Figure:
    """Both panels beside each other."""
    found = differences()
    names = list(next(iter(found.values())))
    with mpl.rc_context({"font.family": "DejaVu Sans", "figure.facecolor": "white"}):
        figure, panels = plt.subplots(1, 2, sharey=True, figsize=(11, 1.6 + 0.52 * len(names)), dpi=110)
        for axes, (key, title) in zip(panels, FEW_IMAGES.items(), strict=True):
            _panel(axes, found[key], title)
        panels[0].set_yticks(range(len(names)), [_wrapped(name) for name in names], fontsize=9)
        lines = [
            plt.Line2D([], [], color=colour, marker=marker, markersize=5, label=PLANNED[method])
            for method, (colour, marker) in STYLES.items()
        ]
        figure.legend(handles=lines, loc="lower center", ncols=len(lines), frameon=False, fontsize=9)
        figure.tight_layout(rect=(0, 0.06, 1, 1))
    return figure


def _wrapped(name: str) -> str:
    """Data and images in the first line, the rest in the second."""
    return ", ".join(name.split(", ")[:2]) + "\n" + (", ".join(name.split(", ")[2:]) or "no image augmentation")


def shown() -> Differences:
    """What the file shows."""
    with Image.open(PICTURE) as picture:
        found: Differences = json.loads(picture.info[KEY])
    return found


if __name__ == "__main__":
    draw().savefig(PICTURE, metadata={KEY: json.dumps(differences())})
