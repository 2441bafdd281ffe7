"""What `isda map` shows: a map per run, side by side, and a table of figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from isda.analysis.figures import drawn, new_figure, write_page
from isda.analysis.maps.judged import Judged
from isda.analysis.maps.separation import Separation
from isda.plain_text import harmless
from isda.report.cells import boxed_table, column, name_cell, number_cell

__all__ = ["HEADS", "View", "cells", "write_maps"]

HEADS = ("run", "silhouette", "kNN accuracy, %", "within / between scatter", "error, %")
NAMED = 20
"""Classes whose names are written on the map."""


@dataclass(frozen=True)
class View:
    """One run: its features, their map, and figures."""

    judged: Judged
    places: Tensor
    separation: Separation
    error: float | None
    """Of the run, on all images that it was judged by."""

    @property
    def title(self) -> str:
        """Which run it is."""
        config = self.judged.config
        options = config.method_options
        strength = f", λ0 = {options['lambda_0']:g}" if "lambda_0" in options else ""
        return f"{config.method}{strength}, seed {config.seed}"


def cells(view: View) -> list[str]:
    """The figures as a row of text."""
    found = view.separation
    error = "" if view.error is None else f"{view.error:.2f}"
    return [view.title, f"{found.silhouette:.3f}", f"{found.knn_accuracy:.1f}", f"{found.scatter:.3f}", error]


def write_maps(path: Path, title: str, views: Sequence[View], by: str, neighbours: int, command: str) -> None:
    """Write the page."""
    from matplotlib import colormaps

    figure, panels = new_figure(len(views), size=(4.6, 4.4))
    for view, axes in zip(views, panels, strict=True):
        classes, labels = view.judged.config.classes, view.judged.labels
        palette = colormaps["tab10" if len(classes) <= 10 else "hsv"].resampled(len(classes))
        for label, name in enumerate(classes):
            x, y = view.places[labels == label].T.numpy()
            if not len(x):
                continue
            # Thousands of points as shapes would make a page of megabytes.
            axes.scatter(x, y, s=5, color=palette(label), linewidths=0, alpha=0.8, rasterized=True)
            if len(classes) <= NAMED:
                x_middle, y_middle = view.places[labels == label].median(0).values.tolist()
                box = {"boxstyle": "round,pad=0.15", "facecolor": "white", "alpha": 0.75, "linewidth": 0}
                axes.annotate(harmless(name), (x_middle, y_middle), fontsize=7, ha="center", bbox=box, parse_math=False)
        axes.set_title(harmless(view.title), fontsize=9, parse_math=False)
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set(visible=True, color="#d8d5cc")
    part = views[0].judged.config.evaluated_on
    count = len(views[0].judged.labels)
    how = "t-SNE" if by == "tsne" else "UMAP"
    picture = drawn(figure, f"Features of the same {count:,} {part} images by {how}, a colour for each class.")
    head = [column(HEADS[0]), *(column(name, numeric=True) for name in HEADS[1:])]
    rows = [[name_cell(cells(view)[0]), *map(number_cell, cells(view)[1:])] for view in views]
    told = (
        f"Of the features themselves, without the map: silhouette (higher is better), accuracy of the {neighbours} "
        "nearest neighbours among the other images, trace of the scatter within classes over that between (lower is "
        "tighter); and the error of the network on everything it was judged by."
    )
    lede = "A map shows which features are neighbours; distances between groups and their sizes mean little in it."
    write_page(path, "isda map", title, lede, [picture, boxed_table("Figures", told, head, rows)], command)
