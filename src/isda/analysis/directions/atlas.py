"""The atlas of a run: directions of each class, images at their ends, features moved along them, and a
permutation test of whether a second network separates the two ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isda._utils import seeds
from isda._utils.choices import check_choice
from isda.analysis.directions.eigenvectors import Landing, class_directions, land
from isda.analysis.training_features import Observed, features_of
from isda.tasks.classification.trained import load_classifier

# Whether another network, which never heard of a direction, tells the images at its two ends apart.
#
# Two chances are tested. Random groups of the class: are pairs across the ends further apart than pairs of the class
# are? And the ends shuffled: images far out may be far from everything, so which end each is at must matter.

MOST_IMAGES = 2000
"""Of a class, from which random groups are drawn."""
LARGEST_END = 50
_AT_ONCE = 200
# Apart from the seeds of steps and epochs.
_GROUPS, _SHUFFLED = 0x67726F75, 0x73687566


@dataclass(frozen=True)
class JudgedEnds:
    """One direction in the features of another network."""

    images: int
    """At each end."""
    ratio: float
    """Mean distance of pairs across the ends, over that of random pairs of the class; above 1 where the ends differ."""
    p: float
    """Of random groups of the same sizes being as far apart as the ends are."""
    shuffled_ratio: float
    """Mean distance of pairs across the ends, over that of pairs within an end."""
    shuffled_p: float
    """Of the same images, dealt to the two ends by chance, being as far apart."""


def judge_ends(features: Tensor, projections: Tensor, *, draws: int = 1999, seed: int = 0) -> list[JudgedEnds]:
    """Judge each direction of one class by the features of another network.

    With g the judge's features and L, H the images at the two ends, the statistic is the mean of |g_i - g_j| over i in
    L and j in H. The ends are a tenth of the class each, from 2 to 50 images. p = (1 + draws at least as large) /
    (1 + draws); `holm` corrects it for the number of directions.

    Args:
        features: (n, B) the judge's, of the images of the class.
        projections: (K, n) of the same images on each of K directions, in the features of the network that has them.
        draws: random groups, and random dealings.
        seed: of both.

    Returns:
        One for each direction; none of a class with fewer than 4 images.
    """
    total = features.shape[0]
    if projections.shape[1] != total:
        raise ValueError(f"projections must be of the {total} images of features, got {projections.shape[1]}")
    if total < 4:
        return []
    size = max(2, min(total // 10, LARGEST_END))
    chance = seeds.generator(seed, _GROUPS)
    some = features[torch.randperm(total, generator=chance)[:MOST_IMAGES]]
    between = torch.cdist(some, some)
    groups = torch.cat([_drawn(between, size, part, chance) for part in _parts(draws)])
    usual = float(between.sum() / (len(some) * (len(some) - 1)))
    return [
        _judged(features, order, size, usual, groups, seeds.generator(seed, _SHUFFLED, number))
        for number, order in enumerate(projections.argsort(dim=1, stable=True))
    ]


def _judged(
    features: Tensor, order: Tensor, size: int, usual: float, groups: Tensor, chance: torch.Generator
) -> JudgedEnds:
    ends = features[torch.cat([order[:size], order[-size:]])]
    between = torch.cdist(ends, ends)
    across = between[:size, size:].mean()
    within = (between[:size, :size].sum() + between[size:, size:].sum()) / (2 * size * (size - 1))
    dealt = torch.cat([_drawn(between, size, part, chance) for part in _parts(len(groups))])
    return JudgedEnds(
        size,
        ratio=_over(float(across), usual),
        p=_share_at_least(groups, across),
        shuffled_ratio=_over(float(across), float(within)),
        shuffled_p=_share_at_least(dealt, across),
    )


def _drawn(between: Tensor, size: int, draws: int, chance: torch.Generator) -> Tensor:
    """(draws,) the mean distance across two random groups of ``size`` each."""
    order = torch.rand(draws, len(between), generator=chance).topk(2 * size, dim=1).indices
    return between[order[:, :size, None], order[:, None, size:]].mean((1, 2))


def _parts(draws: int) -> list[int]:
    """How many to draw at once, for the memory that they take."""
    return [min(_AT_ONCE, draws - start) for start in range(0, draws, _AT_ONCE)]


def _share_at_least(drawn: Tensor, value: Tensor) -> float:
    # Rounding must not tell equal sets of pairs apart.
    return (1 + int((drawn >= value * (1 - 1e-9)).sum())) / (1 + len(drawn))


def _over(value: float, base: float) -> float:
    return value / base if base > 0 else 1.0


def holm(values: Sequence[float]) -> list[float]:
    """P-values corrected for their number by Holm's method, which holds whatever they have to do with each other.

    The i-th smallest of n becomes the largest of (n - j + 1) p_j over j <= i, at most 1.

    Example:
        >>> holm([0.04, 0.01, 0.5])
        [0.08, 0.03, 0.5]
    """
    corrected, largest = [0.0] * len(values), 0.0
    for rank, index in enumerate(sorted(range(len(values)), key=lambda one: values[one])):
        largest = max(largest, (len(values) - rank) * values[index])
        corrected[index] = min(1.0, largest)
    return corrected


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
    judged: JudgedEnds | None = None
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
    config = load_classifier(judge).config
    named = f"{config.network}, {config.method}, seed {config.seed}"
    return Atlas(observed, _corrected(views), directions, named)


def judge_features(judge: Path, observed: Observed, device: torch.device | str = "cpu") -> Tensor:
    """(N, B) what the network of another run makes of the same images."""
    if judge.resolve() == observed.folder.resolve():
        raise ValueError(f"judge must be another run than the one that is looked at, got {judge}")
    trained = load_classifier(judge)
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
