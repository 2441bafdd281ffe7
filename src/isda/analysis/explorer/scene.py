"""What the page shows: the classes of a run, their images and directions, and what lies where a feature is moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

from isda.analysis.directions.eigenvectors import Directions, class_directions
from isda.analysis.directions.moving import Landing, land
from isda.analysis.explorer.plane import Plane, apart, class_plane
from isda.analysis.observing import Observed
from isda.analysis.thumbnails import as_file, thumbnail
from isda.choices import check_choice

__all__ = ["FURTHEST", "Scene", "View"]

FURTHEST = 4.0
"""Standard deviations that a slider goes."""
AMONG = ("any", "own")
"""Where nearest images are looked for: among all, or those of the class of the moved one."""
POINTS = 1500
"""On the map."""
NAMES = 20
"""More classes are not named on the map, but the one that is looked at."""
WORD = (0.2, 0.045)
"""Width and height of a name, as shares of the map."""
AT_ENDS = 3


@dataclass(frozen=True)
class View:
    """An image whose feature is moved."""

    row: int
    moves: tuple[float, ...]
    feature: Tensor
    """(A,) where it lands."""
    among: str
    landing: Landing


class Scene:
    """A run, looked at from where somebody moves to.

    Args:
        observed: the run.
        directions: of each class.
        images: nearest ones that are shown.
    """

    def __init__(self, observed: Observed, directions: int = 5, images: int = 8) -> None:
        self.observed, self.count, self.images = observed, directions, images
        self.directions = lru_cache(maxsize=64)(self._directions)
        self.image_file = lru_cache(maxsize=1000)(self._image_file)

    def _directions(self, label: int) -> Directions:
        return class_directions(self.observed, label, self.count)

    def _image_file(self, row: int) -> bytes:
        return as_file(thumbnail(self.observed.images(torch.tensor([row]))[0]))

    @cached_property
    def plane(self) -> Plane:
        """The map."""
        return class_plane(self.observed.features, self.observed.labels)

    def view(self, row: int, moves: Sequence[float], among: str = "any") -> View:
        """Move the feature of an image by standard deviations of its class along its directions.

        Args:
            row: of ``observed.features``.
            moves: one for each direction, from the first on; at most as many as there are.
            among: "any" looks for nearest images among all, "own" among those of the image's class.
        """
        if not 0 <= row < len(self.observed.labels):
            raise ValueError(f"row must be from 0 to {len(self.observed.labels) - 1}, got {row}")
        check_choice("among", among, AMONG)
        label = int(self.observed.labels[row])
        found = self.directions(label)
        if len(moves) > len(found.vectors):
            raise ValueError(f"moves must be at most {len(found.vectors)}, as many as directions, got {len(moves)}")
        if not all(abs(move) <= FURTHEST for move in moves):
            raise ValueError(f"moves must be from -{FURTHEST:g} to {FURTHEST:g} standard deviations, got {list(moves)}")
        steps = torch.tensor(list(moves), dtype=torch.float64) * found.variances[: len(moves)].sqrt()
        feature = self.observed.features[row] + steps @ found.vectors[: len(moves)]
        landing = land(self.observed, feature, self.images, label=label if among == "own" else None, without=row)
        return View(row, tuple(moves), feature, among, landing)

    def describe(self) -> dict[str, Any]:
        """The run and its classes."""
        config = self.observed.trained.config
        counts = self.observed.labels.bincount(minlength=len(self.observed.classes)).tolist()
        return {
            "title": f"{config.network} on {config.data}",
            "about": f"{config.method}, seed {config.seed}; {len(self.observed.labels)} training images are looked at",
            "furthest": FURTHEST,
            "classes": [
                {"label": label, "name": name, "images": count}
                for label, (name, count) in enumerate(zip(self.observed.classes, counts, strict=True))
            ],
        }

    def describe_class(self, label: int) -> dict[str, Any]:
        """The images of a class, and its directions with the images at their ends."""
        found, rows = self.directions(label), self.observed.rows_of(label)
        ordered = rows[(found.vectors @ self.observed.features[rows].T).argsort(dim=1)] if len(rows) else rows
        shown = min(AT_ENDS, len(rows) // 2)
        return {
            "name": self.observed.classes[label],
            "rows": rows.tolist(),
            "directions": [
                {"share": share, "low": order[:shown].tolist(), "high": order.flip(0)[:shown].tolist()}
                for share, order in zip(found.shares.tolist(), ordered, strict=True)
            ],
        }

    def describe_view(self, view: View) -> dict[str, Any]:
        """Where a moved feature lands, as plain values."""
        names, landing = self.observed.classes, view.landing
        best = landing.probabilities.topk(min(5, len(names)))
        start = self.plane.place(self.observed.features[view.row])
        return {
            "row": view.row,
            "class": names[int(self.observed.labels[view.row])],
            "from": start.tolist(),
            "to": self.plane.place(view.feature).tolist(),
            "nearest": [
                {"row": row, "class": names[int(self.observed.labels[row])], "distance": distance}
                for row, distance in zip(landing.nearest.tolist(), landing.distances.tolist(), strict=True)
            ],
            "probabilities": [
                {"class": names[label], "probability": value}
                for label, value in zip(best.indices.tolist(), best.values.tolist(), strict=True)
            ],
        }

    @cached_property
    def map_rows(self) -> Tensor:
        """The rows on the map: all, or evenly spaced ones of each class."""
        total = len(self.observed.labels)
        order = self.observed.labels.argsort(stable=True)
        return order if total <= POINTS else order[torch.linspace(0, total - 1, POINTS).long()]

    @cached_property
    def map_names(self) -> dict[int, tuple[float, float]]:
        """Where the names of classes stand on the map: at their means, or just below."""
        observed, places = self.observed, self.plane.place(self.observed.features[self.map_rows])
        size = float((places.max(0).values - places.min(0).values).max())
        labels = observed.labels.unique().tolist()
        means = self.plane.place(torch.stack([observed.features[observed.rows_of(label)].mean(0) for label in labels]))
        if len(labels) <= NAMES:
            means = apart(means, WORD[0] * size, WORD[1] * size)
        return {label: (x, y) for label, (x, y) in zip(labels, means.tolist(), strict=True)}

    def describe_map(self) -> dict[str, Any]:
        """Images and the names of classes as points."""
        rows, observed = self.map_rows, self.observed
        points = self.plane.place(observed.features[rows])
        return {
            "points": [[*at, label] for at, label in zip(points.tolist(), observed.labels[rows].tolist(), strict=True)],
            "names": [[*at, label] for label, at in self.map_names.items()],
        }
