"""Content of the explorer: classes, images, directions, moved features, the two-dimensional map and PNG export."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from isda._utils.choices import check_choice, check_range
from isda.lab.analysis.directions.eigenvectors import Landing, class_directions, land, leading_eigenvectors
from isda.lab.analysis.inversion.targets import augmented_features, class_root, strength_of
from isda.lab.analysis.pages import encode_image, thumbnail
from isda.lab.report.wording import number

if TYPE_CHECKING:
    from isda.lab.analysis.training_features import Observed


class Plane(NamedTuple):
    """An orthogonal projection to two dimensions."""

    origin: Tensor
    """(A,) the mean of the class means."""
    axes: Tensor
    """(2, A) orthonormal; zero if features do not vary in two directions."""

    def project(self, features: Tensor) -> Tensor:
        """(..., 2) projections of features (..., A)."""
        return (features - self.origin) @ self.axes.T


def class_plane(features: Tensor, labels: Tensor) -> Plane:
    """The first two principal components of the class means; with two classes or one, also of the features within.

    Args:
        features: (N, A)
        labels: (N,)

    Example:
        >>> corners = torch.tensor([[0.0, 0.0, 1.0], [4.0, 0.0, 1.0], [0.0, 2.0, 1.0], [4.0, 2.0, 1.0]])
        >>> class_plane(corners, torch.arange(4)).axes.tolist()
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    """
    present = labels.unique()
    means = torch.stack([features[labels == label].mean(0) for label in present])
    axes = leading_eigenvectors(means, 2).vectors
    if len(axes) < 2:
        within = features - means[torch.searchsorted(present, labels)]
        rest = leading_eigenvectors(within - within @ axes.T @ axes, 2 - len(axes)).vectors
        axes = torch.cat([axes, rest, features.new_zeros(2, features.shape[1])])[:2]
    return Plane(means.mean(0), axes)


def spread_labels(points: Tensor, width: float, height: float) -> Tensor:
    """(K, 2) positions of labels without overlap: from the top down, each is lowered until it is free.

    Args:
        points: (K, 2) preferred positions.
        width: of a label.
        height: of a label.

    Example:
        >>> spread_labels(torch.tensor([[0.0, 0.0], [0.5, 0.25], [9.0, 0.0]]), width=1.0, height=1.0).tolist()
        [[0.0, -0.75], [0.5, 0.25], [9.0, 0.0]]
    """
    free = points.clone()
    order = points[:, 1].argsort(descending=True, stable=True)
    for done, index in enumerate(order.tolist()):
        near = free[order[:done]]
        near = near[(near[:, 0] - free[index, 0]).abs() < width]
        for y in near[:, 1].sort(descending=True).values:
            if (y - free[index, 1]).abs() < height:
                free[index, 1] = y - height
    return free


FURTHEST = 4.0
"""Range of a slider in standard deviations."""
AMONG = ("any", "own")
"""Images searched for nearest ones: all, or those of the moved image's own class."""
POINTS = 1500
"""Most images on the map."""
NAMES = 20
"""With more classes, only that of the moved image is named on the map."""
WORD = (0.2, 0.045)
"""Width and height of a name as shares of the map."""
AT_ENDS = 3
STRONGEST = 100
"""Largest lambda of a draw."""
LARGEST_SEED = 10**6
SLIDER = 5.0
"""The slider of lambda goes up to this, or to twice the run's lambda_0."""


class Draw(NamedTuple):
    """A draw from N(a, lambda Sigma_y)."""

    strength: float
    """lambda"""
    seed: int


@dataclass(frozen=True)
class MovedFeature:
    """An image whose feature is moved: along directions of its class, or by a random draw."""

    row: int
    moves: tuple[float, ...]
    feature: Tensor
    """(A,) after the move."""
    among: str
    landing: Landing
    draw: Draw | None = None


class Certainty(NamedTuple):
    """What the classifier says at a point of feature space, with logits z and probabilities p."""

    predicted: int
    """Class of the largest logit."""
    probability: float
    """Of that class."""
    margin: float | None
    """z_y - max over j != y of z_j for the image's class y: negative if another class is predicted. None for a single
    class."""
    entropy: float
    """-sum_j p_j log p_j in nats: from 0 (certain) to log C (all classes equally probable)."""


def certainty(logits: Tensor, label: int) -> Certainty:
    """Prediction, margin and entropy of logits (C,) of an image of class ``label``.

    Example:
        >>> found = certainty(torch.tensor([2.0, 2.0, 0.5]), 2)
        >>> found.predicted, found.margin
        (0, -1.5)
        >>> round(certainty(torch.zeros(4), 0).entropy, 4)  # log 4
        1.3863
    """
    log_p = logits.log_softmax(0)
    predicted = int(logits.argmax())
    others = torch.cat([logits[:label], logits[label + 1 :]])
    margin = float(logits[label] - others.max()) if len(others) else None
    # log p is -inf where p underflows; the product is 0.
    entropy = float(torch.special.entr(log_p.exp()).sum())
    return Certainty(predicted, float(log_p[predicted].exp()), margin, entropy)


class Scene:
    """The content of the explorer for a run.

    Args:
        observed: the run.
        directions: of each class.
        images: number of nearest images to show.
    """

    def __init__(self, observed: Observed, directions: int = 5, images: int = 8) -> None:
        self.observed, self.images = observed, images
        self.directions = lru_cache(maxsize=64)(lambda label: class_directions(observed, label, directions))
        self.image_file = lru_cache(maxsize=1000)(self._image_file)
        self._root = lru_cache(maxsize=4)(lambda label: class_root(observed, label))  # A x A each

    def _image_file(self, row: int) -> bytes:
        return encode_image(thumbnail(self.observed.images(torch.tensor([row]))[0]))

    @cached_property
    def plane(self) -> Plane:
        """The projection of the map."""
        return class_plane(self.observed.features, self.observed.labels)

    def view(self, row: int, moves: Sequence[float], among: str = "any") -> MovedFeature:
        """Move the feature of an image by standard deviations of its class along its directions.

        Args:
            row: of ``observed.features``.
            moves: for the first directions; at most as many as there are.
            among: "any" looks for nearest images among all, "own" among those of the image's class.
        """
        label = self._label(row, among)
        directions = self.directions(label)
        count = len(directions.vectors)
        if len(moves) > count:
            raise ValueError(f"moves must be at most {count}, as many as directions, got {len(moves)}")
        if not all(abs(move) <= FURTHEST for move in moves):
            raise ValueError(f"moves must be from -{FURTHEST:g} to {FURTHEST:g} standard deviations, got {list(moves)}")
        steps = torch.tensor(list(moves), dtype=torch.float64) * directions.variances[: len(moves)].sqrt()
        feature = self.observed.features[row] + steps @ directions.vectors[: len(moves)]
        return MovedFeature(row, tuple(moves), feature, among, self._land(feature, row, among))

    def draw(self, row: int, strength: float, seed: int, among: str = "any") -> MovedFeature:
        """An augmented feature of an image: a draw from N(a, lambda Sigma_y), eq. (4) of the paper.

        Args:
            row: of ``observed.features``; a is its feature and y its class.
            strength: lambda, from 0 to 100.
            seed: the same seed gives the same draw. With another strength it lies on the same ray from a.
            among: see `view`.
        """
        self._label(row, among)
        check_range("strength", strength, 0, STRONGEST)
        check_range("draw", seed, 0, LARGEST_SEED)
        rows = torch.tensor([row])
        feature = augmented_features(self.observed, rows, 1, strength=strength, seed=seed, root=self._root)[0, 0]
        return MovedFeature(row, (), feature, among, self._land(feature, row, among), Draw(strength, seed))

    def _label(self, row: int, among: str) -> int:
        """The class of a row; a ValueError if there is no such row, or no such ``among``."""
        if not 0 <= row < len(self.observed.labels):
            raise ValueError(f"row must be from 0 to {len(self.observed.labels) - 1}, got {row}")
        check_choice("among", among, AMONG)
        return int(self.observed.labels[row])

    def _land(self, feature: Tensor, row: int, among: str) -> Landing:
        label = int(self.observed.labels[row]) if among == "own" else None
        return land(self.observed, feature, self.images, label=label, without=row)

    def describe(self) -> dict[str, Any]:
        """The run and its classes."""
        config = self.observed.trained.config
        counts = self.observed.labels.bincount(minlength=len(self.observed.classes)).tolist()
        strength = strength_of(self.observed)
        return {
            "title": f"{config.network} on {config.data}",
            "about": f"{config.method}, seed {config.seed}; {len(self.observed.labels):,} training images",
            "furthest": FURTHEST,
            "strength": min(strength, STRONGEST),
            "strongest": min(max(SLIDER, 2 * strength), STRONGEST),
            "largest_entropy": math.log(len(self.observed.classes)),
            "classes": [
                {"label": label, "name": name, "images": count}
                for label, (name, count) in enumerate(zip(self.observed.classes, counts, strict=True))
            ],
        }

    def describe_class(self, label: int) -> dict[str, Any]:
        """The images of a class, and its directions with the images at their ends."""
        directions, rows = self.directions(label), self.observed.rows_of(label)
        ordered = rows[(directions.vectors @ self.observed.features[rows].T).argsort(dim=1)] if len(rows) else rows
        shown = min(AT_ENDS, len(rows) // 2)
        return {
            "name": self.observed.classes[label],
            "rows": rows.tolist(),
            "directions": [
                {"share": share, "low": order[:shown].tolist(), "high": order.flip(0)[:shown].tolist()}
                for share, order in zip(directions.shares.tolist(), ordered, strict=True)
            ],
        }

    def describe_view(self, view: MovedFeature) -> dict[str, Any]:
        """What is near a moved feature, as plain values."""
        names, landing = self.observed.classes, view.landing
        best = landing.probabilities.topk(min(5, len(names)))
        source = self.observed.features[view.row]
        label = int(self.observed.labels[view.row])
        return {
            "row": view.row,
            "class": names[label],
            "draw": None if view.draw is None else view.draw._asdict(),
            "from": self.plane.project(source).tolist(),
            "to": self.plane.project(view.feature).tolist(),
            "distance": float((view.feature - source).norm()),
            "source": self._describe_certainty(source, label),
            "moved": self._describe_certainty(view.feature, label),
            "nearest": [
                {"row": row, "class": names[int(self.observed.labels[row])], "distance": distance}
                for row, distance in zip(landing.nearest.tolist(), landing.distances.tolist(), strict=True)
            ],
            "probabilities": [
                {"class": names[label], "probability": value}
                for label, value in zip(best.indices.tolist(), best.values.tolist(), strict=True)
            ],
        }

    def _describe_certainty(self, feature: Tensor, label: int) -> dict[str, Any]:
        values = certainty(self.observed.logits(feature), label)
        return values._asdict() | {"predicted": self.observed.classes[values.predicted]}

    @cached_property
    def map_rows(self) -> Tensor:
        """The rows on the map: all, or evenly spaced ones of each class."""
        total = len(self.observed.labels)
        order = self.observed.labels.argsort(stable=True)
        return order if total <= POINTS else order[torch.linspace(0, total - 1, POINTS).long()]

    @cached_property
    def map_names(self) -> dict[int, tuple[float, float]]:
        """Positions of the names of classes on the map: at their means, or just below."""
        observed, points = self.observed, self.plane.project(self.observed.features[self.map_rows])
        size = float((points.max(0).values - points.min(0).values).max())
        labels = observed.labels.unique().tolist()
        means = torch.stack([observed.features[observed.rows_of(label)].mean(0) for label in labels])
        means = self.plane.project(means)
        if len(labels) <= NAMES:
            means = spread_labels(means, WORD[0] * size, WORD[1] * size)
        return {label: (x, y) for label, (x, y) in zip(labels, means.tolist(), strict=True)}

    def describe_map(self) -> dict[str, Any]:
        """Images and the names of classes as points."""
        rows, observed = self.map_rows, self.observed
        points = self.plane.project(observed.features[rows])
        return {
            "points": [[*at, label] for at, label in zip(points.tolist(), observed.labels[rows].tolist(), strict=True)],
            "names": [[*at, label] for label, at in self.map_names.items()],
        }


INK, SOFT, FAINT, ACCENT, PAPER = "#1d2126", "#565c65", "#c9c5bb", "#1a55d9", "#fdfcf9"
COLUMNS = 4


def draw_view(scene: Scene, view: MovedFeature) -> bytes:
    """A PNG file of the view, in the light colours of the pages."""
    from matplotlib.figure import Figure

    observed = scene.observed
    figure = Figure(figsize=(10, 4.6), dpi=144, facecolor=PAPER, layout="constrained")
    name, index = observed.classes[int(observed.labels[view.row])], int(observed.indices[view.row])
    moves = [f"{number(move, 2, sign=True)} σ along {i}" for i, move in enumerate(view.moves, start=1) if move]
    moved = ", ".join(moves) or "not moved"
    if view.draw is not None:
        moved = f"draw {view.draw.seed} from N(a, λΣ), λ = {view.draw.strength:g}"
    figure.suptitle(f"{name}, image {index}: {moved}", color=INK, fontsize=11, parse_math=False)
    halves: Any = figure.subfigures(1, 2)
    left, right = halves
    rows = -(-len(view.landing.nearest) // COLUMNS)
    top, bottom = left.subfigures(2, 1, height_ratios=[1.1, max(rows, 1)])
    first, bars = top.subplots(1, 2, width_ratios=[1, 2.4])
    _image(first, scene, view.row, "the image")
    _bars(bars, scene, view)
    among = "any class" if view.among == "any" else name
    bottom.suptitle(f"nearest training images, of {among}", fontsize=9, color=SOFT, parse_math=False)
    nearest = view.landing.nearest.tolist()
    for index, cell in enumerate(bottom.subplots(max(rows, 1), COLUMNS, squeeze=False).flat):
        cell.axis("off")
        if index < len(nearest):
            _image(cell, scene, nearest[index], observed.classes[int(observed.labels[nearest[index]])])
    _map(right.subplots(), scene, view)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _image(axes: Any, scene: Scene, row: int, title: str) -> None:
    axes.axis("off")
    pixels = thumbnail(scene.observed.images(torch.tensor([row]))[0])
    axes.imshow(pixels.permute(1, 2, 0).numpy(), interpolation="nearest")
    axes.set_title(title, fontsize=8, color=SOFT, parse_math=False, pad=2)


def _bars(axes: Any, scene: Scene, view: MovedFeature) -> None:
    best = view.landing.probabilities.topk(min(5, len(scene.observed.classes)))
    names = [scene.observed.classes[label] for label in best.indices.tolist()]
    positions = range(len(names))[::-1]
    axes.barh(positions, best.values.tolist(), color=ACCENT, alpha=0.6)
    axes.set_yticks(positions)
    axes.set_yticklabels(names, fontsize=8, parse_math=False)
    axes.set_xlim(0, 1)
    axes.set_facecolor("none")
    axes.tick_params(labelsize=8, colors=SOFT)
    axes.set_title("the classifier says", fontsize=8, color=SOFT)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _map(axes: Any, scene: Scene, view: MovedFeature) -> None:
    observed, plane = scene.observed, scene.plane
    label = int(observed.labels[view.row])
    points, labels = plane.project(observed.features[scene.map_rows]), observed.labels[scene.map_rows]
    for part, colour in ((points[labels != label], FAINT), (points[labels == label], ACCENT)):
        axes.scatter(part[:, 0], part[:, 1], s=5, color=colour, alpha=0.6, linewidths=0)
    start, end = plane.project(torch.stack([observed.features[view.row], view.feature])).tolist()
    axes.plot([start[0], end[0]], [start[1], end[1]], color=INK, linewidth=1.5)
    axes.scatter(*start, s=40, facecolor="white", edgecolor=INK, zorder=3)
    axes.scatter(*end, s=50, color=INK, zorder=3)
    names = scene.map_names if len(scene.map_names) <= NAMES else {label: scene.map_names[label]}
    for named, position in names.items():
        text = axes.text(*position, observed.classes[named], ha="center", fontsize=8, color=INK, parse_math=False)
        text.set_bbox({"facecolor": PAPER, "alpha": 0.7, "linewidth": 0, "pad": 1})
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title("map: principal components of the class means", fontsize=9, color=SOFT)
    for side in axes.spines.values():
        side.set_color(FAINT)
