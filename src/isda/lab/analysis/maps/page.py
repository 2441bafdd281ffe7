"""The page of `isda map`: interactive maps in one file, with the images, predictions and errors of each run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from isda.lab.analysis.maps.embedding import Separation, embed, measure_separation, without_map
from isda.lab.analysis.maps.evaluation_features import EvaluationFeatures, evaluation_features
from isda.lab.analysis.markup import Markup, boxed_table, column, data_uri, join, name_cell, number_cell, tag
from isda.lab.analysis.pages import GAP, command_line, encode_image, image_strip, thumbnail, write_page
from isda.lab.engine.run_records import read_run
from isda.lab.text import escape_control_characters

MAP_COLUMNS = ("run", "silhouette", "kNN accuracy, %", "within / between scatter", "error, %")
MOST_THUMBNAILS = 4000
"""Images in the page; of more, the wrongly predicted ones first. All points are drawn."""
LARGEST_THUMBNAIL = 48
"""Side in pixels."""
EXACT = 16
"""Thumbnails up to this side are stored without loss: compression would blur them."""
GRID = 10_000
"""Positions on a map are integers from 0 to this."""


@dataclass(frozen=True)
class FeatureMap:
    """The features of one run, their map, and measures."""

    evaluated: EvaluationFeatures
    points: Tensor | None
    """(N, 2); None if the features have no map, see `without_map`."""
    separation: Separation | None
    """None if the features have no map."""
    error: float | None
    """Of the run on all of its evaluation images."""

    @property
    def title(self) -> str:
        """Method, strength and seed of the run."""
        config = self.evaluated.config
        options = config.method_options
        strength = f", λ0 = {options['lambda_0']}".removesuffix(".0") if "lambda_0" in options else ""
        return f"{config.method}{strength}, seed {config.seed}"

    @property
    def wrong(self) -> Tensor:
        """(N,) whether the prediction is an error."""
        return self.evaluated.predicted != self.evaluated.labels


def map_cells(view: FeatureMap) -> list[str]:
    """The measures as a row of text."""
    separation = view.separation
    error = "" if view.error is None else f"{view.error:.2f}"
    if separation is None:
        return [view.title, "", "", "", error]
    measures = f"{separation.silhouette:.3f}", f"{separation.knn_accuracy:.1f}", f"{separation.scatter:.3f}"
    return [view.title, *measures, error]


def grid_positions(points: Tensor) -> Tensor:
    """(N, 2) integers from 0 to `GRID`, in the proportions of points (N, 2); y grows downwards, as on a canvas.

    Example:
        >>> grid_positions(torch.tensor([[0.0, 0.0], [4.0, 2.0]])).tolist()
        [[0, 7500], [10000, 2500]]
    """
    low, high = points.min(0).values, points.max(0).values
    scaled = (points - (low + high) / 2) / (high - low).max() * torch.tensor([1.0, -1.0], dtype=points.dtype)
    return ((scaled + 0.5) * GRID).round().long()


def thumbnail_sheet(views: Sequence[FeatureMap]) -> tuple[list[int], Tensor]:
    """The rows that have a thumbnail, in order, and the sheet of thumbnails (4, H, W) in `_columns` columns."""
    wrong = torch.stack([view.wrong for view in views]).any(0)
    rows = wrong.logical_not().byte().argsort(stable=True)[:MOST_THUMBNAILS].sort().values
    evaluated = views[0].evaluated
    # One at a time: photographs may be large, and of different sizes.
    cells = [_small(thumbnail(evaluated.images(row[None])[0])) for row in rows]
    return rows.tolist(), image_strip(cells, _columns(len(cells)))


def _columns(images: int) -> int:
    return max(1, round(images**0.5))


def _small(image: Tensor) -> Tensor:
    longest = max(image.shape[1:])
    if longest <= LARGEST_THUMBNAIL:
        return image
    size = [max(1, round(side * LARGEST_THUMBNAIL / longest)) for side in image.shape[1:]]
    smaller = F.interpolate(image[None].float(), size, mode="bilinear", antialias=True)[0]
    return smaller.round().clamp(0, 255).to(torch.uint8)


def page_data(views: Sequence[FeatureMap]) -> tuple[dict[str, Any], bytes]:
    """What the script of the page reads, as plain values, and the file of thumbnails."""
    first = views[0].evaluated
    rows, sheet = thumbnail_sheet(views)
    columns = _columns(len(rows))
    width, height = ((sheet.shape[2] + GAP) // columns, (sheet.shape[1] + GAP) // -(-len(rows) // columns))
    maps = [
        {
            "title": escape_control_characters(view.title),
            # Without a map the run's predictions are still shown.
            "positions": None if view.points is None else grid_positions(view.points).T.tolist(),
            "predicted": view.evaluated.predicted.tolist(),
            "confidence": (1000 * view.evaluated.confidence).round().int().tolist(),
        }
        for view in views
    ]
    data = {
        "part": first.config.evaluated_on,
        "classes": [escape_control_characters(name) for name in first.config.classes],
        "labels": first.labels.tolist(),
        "indices": first.indices.tolist(),
        "grid": GRID,
        "thumbnails": {"rows": rows, "columns": columns, "cell": [width, height], "gap": GAP},
        "maps": maps,
    }
    return data, encode_image(sheet, exact=max(width, height) - GAP <= EXACT)


def _script(data: dict[str, Any]) -> list[Markup]:
    """The data and the script; "<" could end the element that holds the data."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return [
        tag("script", Markup(text), type="application/json", id="map-data"),
        tag("script", Markup(_file("map.js"))),
    ]


def _file(name: str) -> str:
    return files("isda.lab.analysis.maps").joinpath(name).read_text(encoding="utf-8")


def _figure(number: int, view: FeatureMap) -> Markup:
    wrong = int(view.wrong.sum())
    title = escape_control_characters(view.title)
    caption = f"{title}: {wrong:,} of {len(view.wrong):,} images wrongly predicted."
    if view.points is None:
        reason = without_map(view.evaluated.features)
        content = tag("p", f"No map: {reason}.", class_="note")
    else:
        label = f"Map of {title}. Arrow keys move between images, Escape ends."
        canvas = tag("canvas", tabindex=0, role="img", aria_label=label, data_map=number)
        content = tag("div", canvas, tag("div", class_="card", hidden="hidden"), class_="box")
    return tag("figure", content, tag("figcaption", caption), class_="map")


def _controls(classes: Sequence[str]) -> Markup:
    options = [tag("option", "all classes", value=-1)]
    options += [tag("option", escape_control_characters(name), value=label) for label, name in enumerate(classes)]
    return tag(
        "div",
        tag("label", tag("input", type="checkbox", id="mark", checked="checked"), " mark errors with a ring"),
        tag("label", tag("input", type="checkbox", id="only"), " show errors only"),
        tag("label", "class ", tag("select", *options, id="class", aria_label="class")),
        tag(
            "span",
            tag("button", "Previous error", type="button", id="previous"),
            " ",
            tag("button", "Next error", type="button", id="next"),
            class_="word",
        ),
        class_="controls",
        role="group",
        aria_label="What the maps show",
    )


def write_maps(path: Path, title: str, views: Sequence[FeatureMap], neighbours: int, command: str) -> None:
    """Write the page."""
    first = views[0].evaluated
    data, thumbnails = page_data(views)
    lede = (
        f"Each point is one of {len(first.labels):,} {first.config.evaluated_on} images, placed by t-SNE so that "
        "images with similar features are neighbours. Colour and shape show the class, a ring a wrong prediction."
    )
    how = (
        "Point at a map, tap it, or use the arrow keys on it to see an image, its class and the prediction"
        f"{' of each run' if len(views) > 1 else ''}. Only neighbourhoods mean something: distances between groups "
        "and their sizes do not. The table below is measured on the features themselves."
    )
    if len(first.labels) > MOST_THUMBNAILS:
        how += f" The page holds {MOST_THUMBNAILS:,} of the images, wrongly predicted ones first."
    head = [column(MAP_COLUMNS[0]), *(column(name, numeric=True) for name in MAP_COLUMNS[1:])]
    rows = [[name_cell(map_cells(view)[0]), *map(number_cell, map_cells(view)[1:])] for view in views]
    caption = (
        f"Measured on the features, not on the map: silhouette (higher is better), accuracy of the {neighbours} "
        "nearest neighbours among the other images, trace of the scatter within classes over that between classes "
        "(lower is tighter); and the error of the network on all of its evaluation images."
    )
    parts = [
        tag("noscript", tag("p", "The maps need JavaScript; the table does not.")),
        _controls(first.config.classes),
        tag("ul", id="legend", class_="legend", aria_label="Classes"),
        tag("div", *(_figure(number, view) for number, view in enumerate(views)), class_="maps"),
        tag("p", id="status", class_="hidden-text", role="status"),
        tag("img", src=data_uri(thumbnails), alt="", id="thumbnails", hidden="hidden"),
        boxed_table("Figures", caption, head, rows),
        join(_script(data)),
    ]
    write_page(path, "isda map", title, lede, parts, command, _file("map.css"), [tag("p", how)])


@dataclass(frozen=True, kw_only=True)
class MapOptions:
    """Options of `isda map`."""

    images: int = 2000
    perplexity: float = 30.0
    neighbours: int = 10
    seed: int = 0


def draw_maps(
    runs: Sequence[Path],
    out: Path,
    options: MapOptions,
    data_root: Path | None,
    device: torch.device,
    watched: Callable[[Sequence[EvaluationFeatures]], Iterable[EvaluationFeatures]] = iter,
) -> tuple[str, list[FeatureMap]]:
    """Draw a map of the features of each run and write the page; return its title and the maps.

    In place of a map, the page says why features have none (`without_map`).

    ``watched`` wraps the iteration over runs, to show progress.

    Raises:
        ValueError: no run, runs that cannot be compared, or options out of range.
    """
    if not runs:
        raise ValueError("runs must be given: the folders of one or more finished runs")
    evaluated = [evaluation_features(run, data_root, device, most=options.images, seed=options.seed) for run in runs]
    sets = {(run.config.data, run.config.evaluated_on, len(run.labels)) for run in evaluated}
    if len(sets) > 1:
        raise ValueError(f"runs must be of one data set and evaluated on the same images, got {sorted(sets)}")
    views = []
    for run in watched(evaluated):
        points, separation = None, None
        if without_map(run.features) is None:
            points = embed(run.features, perplexity=options.perplexity, seed=options.seed)
            separation = measure_separation(run.features, run.labels, options.neighbours)
        views.append(FeatureMap(run, points, separation, read_run(run.folder).value))
    config = evaluated[0].config
    title = f"Features of {config.network} on {config.data}"
    command = command_line("map", *runs, **asdict(options), out=out)
    write_maps(out, title, views, options.neighbours, command)
    return title, views
