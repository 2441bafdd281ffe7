"""Feature maps by t-SNE (van der Maaten and Hinton, 2008) or UMAP, measures of class separation, and the page of
`isda map`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isda._utils.choices import check_choice
from isda._utils.extras import missing_message
from isda._utils.text import escape_control_characters
from isda.analysis.evaluation_features import EvaluationFeatures, evaluation_features
from isda.analysis.pages import command_line, new_figure, svg_figure, write_page
from isda.engine.run_records import read_run
from isda.report.markup import boxed_table, column, name_cell, number_cell


def embed(features: Tensor, by: str = "tsne", *, perplexity: float = 30.0, seed: int = 0) -> Tensor:
    """(N, 2) float64 points in the plane for features (N, A); the same for the same seed.

    Args:
        features: of any images.
        by: tsne or umap.
        perplexity: of t-SNE; for UMAP the number of neighbours. It must be below N.
        seed: of the embedding.

    Raises:
        ValueError: an option is out of range, or the features have no map, see `without_map`.
    """
    check_choice("by", by, METHODS)
    if not 1 <= perplexity < len(features):
        raise ValueError(f"perplexity must be from 1 to below the {len(features)} images, got {perplexity:g}")
    if reason := without_map(features):
        raise ValueError(f"features must be finite and differ between images, but {reason}")
    # One scale for all coordinates: the unit is arbitrary, but the spread of a coordinate is its importance. First by
    # the largest number, whose square may overflow.
    scaled = features / features.abs().max()
    scaled = scaled - scaled.mean(0)
    scaled = scaled / scaled.square().mean().sqrt()
    if scaled.shape[1] == 1:  # t-SNE starts from two principal components
        scaled = torch.nn.functional.pad(scaled, (0, 1))
    return torch.as_tensor(METHODS[by](scaled.numpy(), perplexity, seed)).double()


def without_map(features: Tensor) -> str | None:
    """Why features (N, A) have no map, or None if they have one.

    t-SNE divides by the spread of its start: it ends the process with a segmentation fault if that is zero or NaN.

    Example:
        >>> without_map(torch.ones(3, 2)), without_map(torch.eye(2))
        ('the features of all 3 images are the same', None)
    """
    bad = len(features) - int(features.isfinite().all(1).sum())
    if bad:
        return f"the features of {bad} of {len(features)} images are NaN or infinite"
    largest = float(features.abs().max())
    # Differences below the precision of the network's float32 features are rounding errors.
    spread = float((features - features[0]).abs().max())
    if spread <= torch.finfo(torch.float32).eps * largest:
        return f"the features of all {len(features)} images are the same"
    return None


def _tsne(features: Any, perplexity: float, seed: int) -> Any:
    from sklearn.manifold import TSNE

    return TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(features)


def _umap(features: Any, perplexity: float, seed: int) -> Any:
    try:
        from umap import UMAP
    except ImportError as error:
        raise ValueError(f"a map by umap needs {missing_message('umap')}; tsne needs no extra") from error
    return UMAP(n_neighbors=max(2, round(perplexity)), random_state=seed, n_jobs=1).fit_transform(features)


METHODS: dict[str, Callable[[Any, float, int], Any]] = {"tsne": _tsne, "umap": _umap}
"""By name; each takes features, the perplexity and a seed."""

ROWS_AT_ONCE = 1000


@dataclass(frozen=True)
class Separation:
    """Three measures of how well features separate the classes."""

    silhouette: float
    """Mean over samples of (b - a) / max(a, b): a is the mean distance to its own class, b to the nearest other."""
    knn_accuracy: float
    """Accuracy in percent of a vote of the k nearest others; the nearest decides a tie."""
    scatter: float
    """Trace of the scatter within classes over that between classes: smaller is tighter."""


def measure_separation(features: Tensor, labels: Tensor, neighbours: int = 10) -> Separation:
    """Silhouette (Rousseeuw, 1987), accuracy of the nearest neighbours, and within/between scatter.

    Args:
        features: (N, A).
        labels: (N,), of at least two classes.
        neighbours: k.
    """
    if len(labels.unique()) < 2:
        raise ValueError("labels must be of at least two classes, got one")
    if not 1 <= neighbours < len(labels):
        raise ValueError(f"neighbours must be from 1 to {len(labels) - 1}, got {neighbours}")
    from sklearn.metrics import silhouette_score

    return Separation(
        float(silhouette_score(features.numpy(), labels.numpy())),
        _knn_accuracy(features, labels, neighbours),
        _scatter(features, labels),
    )


def _knn_accuracy(features: Tensor, labels: Tensor, neighbours: int) -> float:
    classes, hits = int(labels.max()) + 1, 0
    for rows in torch.arange(len(labels)).split(ROWS_AT_ONCE):
        distance = torch.cdist(features[rows], features)
        distance[torch.arange(len(rows)), rows] = torch.inf
        nearest = labels[distance.topk(neighbours, largest=False).indices]
        votes = torch.zeros(len(rows), classes, dtype=features.dtype)
        votes.scatter_add_(1, nearest, torch.ones_like(nearest, dtype=features.dtype))
        votes.scatter_add_(1, nearest[:, :1], torch.full((len(rows), 1), 0.5, dtype=features.dtype))
        hits += int((votes.argmax(1) == labels[rows]).sum())
    return 100 * hits / len(labels)


def _scatter(features: Tensor, labels: Tensor) -> float:
    centre, within, between = features.mean(0), 0.0, 0.0
    for label in labels.unique().tolist():
        members = features[labels == label]
        mean = members.mean(0)
        within += float((members - mean).square().sum())
        between += len(members) * float((mean - centre).square().sum())
    return within / between if between else float("inf")


MAP_COLUMNS = ("run", "silhouette", "kNN accuracy, %", "within / between scatter", "error, %")
NAMED = 20
"""Most classes whose names are written on the map."""


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


def map_cells(view: FeatureMap) -> list[str]:
    """The measures as a row of text."""
    separation = view.separation
    error = "" if view.error is None else f"{view.error:.2f}"
    if separation is None:
        return [view.title, "", "", "", error]
    measures = f"{separation.silhouette:.3f}", f"{separation.knn_accuracy:.1f}", f"{separation.scatter:.3f}"
    return [view.title, *measures, error]


def write_maps(path: Path, title: str, views: Sequence[FeatureMap], by: str, neighbours: int, command: str) -> None:
    """Write the page."""
    from matplotlib import colormaps

    figure, panels = new_figure(len(views), size=(4.6, 4.4))
    for view, axes in zip(views, panels, strict=True):
        axes.set_title(escape_control_characters(view.title), fontsize=9, parse_math=False)
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set(visible=True, color="#d8d5cc")
        if view.points is None:
            reason = without_map(view.evaluated.features)
            axes.text(0.5, 0.5, f"No map:\n{reason}", ha="center", va="center", fontsize=8, transform=axes.transAxes)
            continue
        classes, labels = view.evaluated.config.classes, view.evaluated.labels
        palette = colormaps["tab10" if len(classes) <= 10 else "hsv"].resampled(len(classes))
        for label, name in enumerate(classes):
            x, y = view.points[labels == label].T.numpy()
            if not len(x):
                continue
            # Rasterised: thousands of points as shapes would take megabytes.
            axes.scatter(x, y, s=5, color=palette(label), linewidths=0, alpha=0.8, rasterized=True)
            if len(classes) <= NAMED:
                x_middle, y_middle = view.points[labels == label].median(0).values.tolist()
                box = {"boxstyle": "round,pad=0.15", "facecolor": "white", "alpha": 0.75, "linewidth": 0}
                axes.annotate(
                    escape_control_characters(name),
                    (x_middle, y_middle),
                    fontsize=7,
                    ha="center",
                    bbox=box,
                    parse_math=False,
                )
    part = views[0].evaluated.config.evaluated_on
    count = len(views[0].evaluated.labels)
    name = "t-SNE" if by == "tsne" else "UMAP"
    picture = svg_figure(figure, f"Features of the same {count:,} {part} images by {name}, a colour for each class.")
    head = [column(MAP_COLUMNS[0]), *(column(name, numeric=True) for name in MAP_COLUMNS[1:])]
    rows = [[name_cell(map_cells(view)[0]), *map(number_cell, map_cells(view)[1:])] for view in views]
    caption = (
        f"Measured on the features, not on the map: silhouette (higher is better), accuracy of the {neighbours} "
        "nearest neighbours among the other images, trace of the scatter within classes over that between classes "
        "(lower is tighter); and the error of the network on all of its evaluation images."
    )
    lede = "A map shows which features are neighbours; distances between groups and their sizes mean little."
    write_page(path, "isda map", title, lede, [picture, boxed_table("Figures", caption, head, rows)], command)


@dataclass(frozen=True, kw_only=True)
class MapOptions:
    """Options of `isda map`."""

    by: str = "tsne"
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
            points = embed(run.features, options.by, perplexity=options.perplexity, seed=options.seed)
            separation = measure_separation(run.features, run.labels, options.neighbours)
        views.append(FeatureMap(run, points, separation, read_run(run.folder).value))
    config = evaluated[0].config
    title = f"Features of {config.network} on {config.data}"
    command = command_line("map", *runs, **asdict(options), out=out)
    write_maps(out, title, views, options.by, options.neighbours, command)
    return title, views
