"""The current view as one picture to keep: the image, its moves, the nearest images, the classifier, the map."""

from __future__ import annotations

import io
from typing import Any

import torch

from isda.analysis.explorer.scene import NAMES, Scene, View
from isda.analysis.thumbnails import thumbnail
from isda.report.wording import number

__all__ = ["draw"]

INK, SOFT, FAINT, ACCENT, PAPER = "#1d2126", "#565c65", "#c9c5bb", "#1a55d9", "#fdfcf9"
COLUMNS = 4


def draw(scene: Scene, view: View) -> bytes:
    """A PNG file of the view, in the colours of our pages by day."""
    from matplotlib.figure import Figure

    observed = scene.observed
    figure = Figure(figsize=(10, 4.6), dpi=144, facecolor=PAPER, layout="constrained")
    name, index = observed.classes[int(observed.labels[view.row])], int(observed.indices[view.row])
    moves = [f"{number(move, 2, sign=True)} σ along {i}" for i, move in enumerate(view.moves, start=1) if move]
    figure.suptitle(
        f"{name}, image {index}: {', '.join(moves) or 'not moved'}", color=INK, fontsize=11, parse_math=False
    )
    halves: Any = figure.subfigures(1, 2)
    left, right = halves
    rows = -(-len(view.landing.nearest) // COLUMNS)
    top, bottom = left.subfigures(2, 1, height_ratios=[1.1, max(rows, 1)])
    first, bars = top.subplots(1, 2, width_ratios=[1, 2.4])
    _image(first, scene, view.row, "the image")
    _bars(bars, scene, view)
    among = "any class" if view.among == "any" else name
    bottom.suptitle(f"nearest training images, of {among}", fontsize=9, color=SOFT, parse_math=False)
    for cell, row in zip(bottom.subplots(max(rows, 1), COLUMNS, squeeze=False).flat, _padded(view, rows), strict=False):
        _image(cell, scene, row, "" if row is None else observed.classes[int(observed.labels[row])])
    _map(right.subplots(), scene, view)
    written = io.BytesIO()
    figure.savefig(written, format="png")
    return written.getvalue()


def _padded(view: View, rows: int) -> list[int | None]:
    found = view.landing.nearest.tolist()
    return [*found, *[None] * (max(rows, 1) * COLUMNS - len(found))]


def _image(axes: Any, scene: Scene, row: int | None, title: str) -> None:
    axes.axis("off")
    if row is None:
        return
    pixels = thumbnail(scene.observed.images(torch.tensor([row]))[0])
    axes.imshow(pixels.permute(1, 2, 0).numpy(), interpolation="nearest")
    axes.set_title(title, fontsize=8, color=SOFT, parse_math=False, pad=2)


def _bars(axes: Any, scene: Scene, view: View) -> None:
    best = view.landing.probabilities.topk(min(5, len(scene.observed.classes)))
    names = [scene.observed.classes[label] for label in best.indices.tolist()]
    places = range(len(names))[::-1]
    axes.barh(places, best.values.tolist(), color=ACCENT, alpha=0.6)
    axes.set_yticks(places)
    axes.set_yticklabels(names, fontsize=8, parse_math=False)
    axes.set_xlim(0, 1)
    axes.set_facecolor("none")
    axes.tick_params(labelsize=8, colors=SOFT)
    axes.set_title("the classifier says", fontsize=8, color=SOFT)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _map(axes: Any, scene: Scene, view: View) -> None:
    observed, plane = scene.observed, scene.plane
    label = int(observed.labels[view.row])
    places, labels = plane.place(observed.features[scene.map_rows]), observed.labels[scene.map_rows]
    for points, colour in ((places[labels != label], FAINT), (places[labels == label], ACCENT)):
        axes.scatter(points[:, 0], points[:, 1], s=5, color=colour, alpha=0.6, linewidths=0)
    start, end = plane.place(torch.stack([observed.features[view.row], view.feature])).tolist()
    axes.plot([start[0], end[0]], [start[1], end[1]], color=INK, linewidth=1.5)
    axes.scatter(*start, s=40, facecolor="white", edgecolor=INK, zorder=3)
    axes.scatter(*end, s=50, color=INK, zorder=3)
    names = scene.map_names if len(scene.map_names) <= NAMES else {label: scene.map_names[label]}
    for named, place in names.items():
        told = axes.text(*place, observed.classes[named], ha="center", fontsize=8, color=INK, parse_math=False)
        told.set_bbox({"facecolor": PAPER, "alpha": 0.7, "linewidth": 0, "pad": 1})
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title("map: principal components of the class means", fontsize=9, color=SOFT)
    for side in axes.spines.values():
        side.set_color(FAINT)
