"""The atlas of a run: for each class its directions, the images at their ends, and where a moved feature lands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isda.analysis.directions.eigenvectors import class_directions
from isda.analysis.directions.judging import Judged, holm, judge_ends
from isda.analysis.directions.moving import Landing, land
from isda.analysis.observing import Observed, features_of
from isda.choices import check_choice
from isda.classification.trained import load_trained

__all__ = ["DEVIATIONS", "MOST_CLASSES", "Atlas", "ClassView", "DirectionView", "judge_features", "make_atlas"]

DEVIATIONS = (-3.0, -1.5, 1.5, 3.0)
"""How far a feature is moved, in standard deviations of its class along the direction."""
MOST_CLASSES = 20
"""Shown unless they are named."""


@dataclass(frozen=True)
class DirectionView:
    """One direction of a class."""

    variance: float
    share: float
    """Of the variance of the class."""
    low: Tensor
    """Rows of the images with the smallest projections, the smallest first."""
    high: Tensor
    """Rows of the images with the largest, the largest first."""
    landings: tuple[Landing, ...]
    """For each of `DEVIATIONS`."""
    judged: Judged | None = None
    corrected_p: float | None = None
    """The larger p of `judged`, corrected for the number of directions in the atlas."""


@dataclass(frozen=True)
class ClassView:
    """One class and its directions."""

    label: int
    images: int
    moved: int | None
    """The row whose feature is moved: the one nearest to the mean of the class. None if there is no direction."""
    directions: tuple[DirectionView, ...]


@dataclass(frozen=True)
class Atlas:
    """Everything that the page shows."""

    observed: Observed
    classes: tuple[ClassView, ...]
    asked: int
    """Directions of each class."""
    judge: str | None = None
    """The network that judged."""

    @property
    def judged(self) -> list[DirectionView]:
        """The directions of which the judge said something."""
        return [one for view in self.classes for one in view.directions if one.judged is not None]

    def as_json(self) -> dict[str, Any]:
        """As plain values; images by their positions among the training images of the data set."""
        config = self.observed.trained.config
        return {
            "run": str(self.observed.folder),
            "data": config.data,
            "network": config.network,
            "method": config.method,
            "images": len(self.observed.labels),
            "deviations": list(DEVIATIONS),
            "neighbours": "of any class",
            "judge": self.judge,
            "classes": [self._class(view) for view in self.classes],
        }

    def _class(self, view: ClassView) -> dict[str, Any]:
        moved = None if view.moved is None else int(self.observed.indices[view.moved])
        shown = [self._direction(one) for one in view.directions]
        return {
            "name": self.observed.classes[view.label],
            "images": view.images,
            "moved": moved,
            "directions": shown,
        }

    def _direction(self, one: DirectionView) -> dict[str, Any]:
        indices, names = self.observed.indices, self.observed.classes
        landings = [
            {
                "nearest": indices[landing.nearest].tolist(),
                "classes": [names[label] for label in self.observed.labels[landing.nearest].tolist()],
                "distances": landing.distances.tolist(),
                "probabilities": landing.probabilities.tolist(),
            }
            for landing in one.landings
        ]
        judged = None if one.judged is None else asdict(one.judged) | {"corrected_p": one.corrected_p}
        ends = {"low": indices[one.low].tolist(), "high": indices[one.high].tolist()}
        return {"variance": one.variance, "share": one.share, **ends, "landings": landings, "judged": judged}


def make_atlas(
    observed: Observed,
    *,
    classes: Sequence[str] = (),
    directions: int = 5,
    images: int = 6,
    judge: Path | None = None,
    device: torch.device | str = "cpu",
) -> Atlas:
    """Look along the directions of classes.

    Args:
        observed: the run.
        classes: names; all if none are given, of more than 20 the first 20.
        directions: of each class.
        images: at each end, and nearest to each moved feature; at most half of the class at an end.
        judge: the folder of another run, by whose features the ends are compared.
        device: where the judge computes.
    """
    for name in classes:
        check_choice("classes", name, observed.classes)
    labels = [observed.classes.index(name) for name in dict.fromkeys(classes)]
    labels = labels or list(range(len(observed.classes)))[:MOST_CLASSES]
    seen = None if judge is None else judge_features(judge, observed, device)
    draws = max(1999, 40 * directions * len(labels))  # so many that a corrected p can be small
    views = tuple(_class_view(observed, label, directions, images, seen, draws) for label in labels)
    if judge is None or seen is None:
        return Atlas(observed, views, directions)
    config = load_trained(judge).config
    named = f"{config.network}, {config.method}, seed {config.seed}"
    return Atlas(observed, _corrected(views), directions, named)


def judge_features(judge: Path, observed: Observed, device: torch.device | str = "cpu") -> Tensor:
    """(N, B) what the network of another run makes of the same images."""
    if judge.resolve() == observed.folder.resolve():
        raise ValueError(f"judge must be another run than the one that is looked at, got {judge}")
    trained = load_trained(judge)
    mine, theirs = observed.trained.config, trained.config
    if (mine.channels, mine.image_size) != (theirs.channels, theirs.image_size):
        raise ValueError(
            f"judge must take images of {mine.channels} channels and size {mine.image_size}, "
            f"got {theirs.channels} channels and size {theirs.image_size}"
        )
    return features_of(trained, observed.data, observed.indices, device)


def _class_view(observed: Observed, label: int, count: int, images: int, judge: Tensor | None, draws: int) -> ClassView:
    rows = observed.rows_of(label)
    found = class_directions(observed, label, count)
    if len(found.vectors) == 0:
        return ClassView(label, len(rows), None, ())
    members = observed.features[rows]
    mean = members.mean(0)
    moved = int(rows[(members - mean).norm(dim=1).argmin()])
    projections = found.vectors @ (members - mean).T
    seed = observed.trained.config.seed
    verdicts = [] if judge is None else judge_ends(judge[rows], projections, draws=draws, seed=seed)
    views = []
    for number, (vector, variance) in enumerate(zip(found.vectors, found.variances.tolist(), strict=True)):
        order = rows[projections[number].argsort(stable=True)]
        shown = min(images, len(rows) // 2)
        landings = tuple(
            land(observed, observed.features[moved] + step * variance**0.5 * vector, images, without=moved)
            for step in DEVIATIONS
        )
        verdict = verdicts[number] if verdicts else None
        share = float(found.shares[number])
        views.append(DirectionView(variance, share, order[:shown], order.flip(0)[:shown], landings, verdict))
    return ClassView(label, len(rows), moved, tuple(views))


def _corrected(views: Sequence[ClassView]) -> tuple[ClassView, ...]:
    """With p-values corrected over all directions of all classes."""
    judged = [one.judged for view in views for one in view.directions if one.judged is not None]
    values = iter(holm([max(one.p, one.shuffled_p) for one in judged]))
    return tuple(
        replace(
            view,
            directions=tuple(
                one if one.judged is None else replace(one, corrected_p=next(values)) for one in view.directions
            ),
        )
        for view in views
    )
