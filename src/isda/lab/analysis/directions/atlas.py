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
from torch.nn import functional as F

from isda.lab import seeds
from isda.lab.analysis.directions.eigenvectors import Landing, class_directions, land
from isda.lab.analysis.pages import thumbnail
from isda.lab.analysis.training_features import Observed, features_of
from isda.lab.choices import check_choice
from isda.lab.tasks.classification.trained import load_classifier

MOST_IMAGES = 2000
"""Of a class, from which random groups are drawn."""
LARGEST_END = 50
_DRAWS_AT_ONCE = 200
# Distinct from the seeds of steps and epochs.
_GROUPS, _SHUFFLED = 0x67726F75, 0x73687566


@dataclass(frozen=True)
class JudgedEnds:
    """Separation of the two ends of a direction in the features of another network."""

    images: int
    """At each end."""
    ratio: float
    """Mean distance of pairs across the ends over that of random pairs of the class; above 1 if the ends differ."""
    p: float
    """Probability that random groups of the same sizes are at least as far apart as the ends."""
    shuffled_ratio: float
    """Mean distance of pairs across the ends over that of pairs within an end."""
    shuffled_p: float
    """Probability that the same images, assigned to the ends at random, are at least as far apart."""


def judge_ends(features: Tensor, projections: Tensor, *, draws: int = 1999, seed: int = 0) -> list[JudgedEnds]:
    """Test for each direction of one class whether the features of another network, the judge, separate its ends.

    With g the judge's features and L, H the images at the two ends, the statistic is the mean of |g_i - g_j| over i in
    L and j in H. The ends are a tenth of the class each, from 2 to 50 images. There are two permutation tests: against
    random groups of the class, and against random assignments of the same images to the ends, since images at the ends
    may be far from all others. p = (1 + draws at least as large) / (1 + draws); `holm` corrects it for the number of
    directions.

    Args:
        features: (n, B) the judge's, of the images of the class.
        projections: (K, n) of the same images on each of K directions, in the features of the observed network.
        draws: of each test.
        seed: of the draws.

    Returns:
        One result for each direction; none for a class with fewer than 4 images.
    """
    total = features.shape[0]
    if projections.shape[1] != total:
        raise ValueError(f"projections must be of the {total} images of features, got {projections.shape[1]}")
    if total < 4:
        return []
    size = max(2, min(total // 10, LARGEST_END))
    rng = seeds.generator(seed, _GROUPS)
    sample = features[torch.randperm(total, generator=rng)[:MOST_IMAGES]]
    distances = torch.cdist(sample, sample)
    groups = _random_groups(distances, size, draws, rng)
    usual = float(distances.sum() / (len(sample) * (len(sample) - 1)))
    return [
        _judge(features, order, size, usual, groups, seeds.generator(seed, _SHUFFLED, number))
        for number, order in enumerate(projections.argsort(dim=1, stable=True))
    ]


def _judge(
    features: Tensor, order: Tensor, size: int, usual: float, groups: Tensor, rng: torch.Generator
) -> JudgedEnds:
    ends = features[torch.cat([order[:size], order[-size:]])]
    distances = torch.cdist(ends, ends)
    across = distances[:size, size:].mean()
    within = (distances[:size, :size].sum() + distances[size:, size:].sum()) / (2 * size * (size - 1))
    shuffled = _random_groups(distances, size, len(groups), rng)
    return JudgedEnds(
        size,
        ratio=_ratio(float(across), usual),
        p=_share_at_least(groups, across),
        shuffled_ratio=_ratio(float(across), float(within)),
        shuffled_p=_share_at_least(shuffled, across),
    )


def _random_groups(distances: Tensor, size: int, draws: int, rng: torch.Generator) -> Tensor:
    """(draws,) the mean distance across two random groups of ``size`` each."""
    means = []
    for start in range(0, draws, _DRAWS_AT_ONCE):  # bounds the memory
        count = min(_DRAWS_AT_ONCE, draws - start)
        order = torch.rand(count, len(distances), generator=rng).topk(2 * size, dim=1).indices
        means.append(distances[order[:, :size, None], order[:, None, size:]].mean((1, 2)))
    return torch.cat(means)


def _share_at_least(drawn: Tensor, value: Tensor) -> float:
    # Equal sets of pairs must compare as equal in spite of rounding.
    return (1 + int((drawn >= value * (1 - 1e-9)).sum())) / (1 + len(drawn))


def _ratio(value: float, base: float) -> float:
    return value / base if base > 0 else 1.0


SEEN_AT_END = 20
"""Most images at an end of which `visible_spread` is measured."""
COMPARED_SIDE = 32
"""Side in pixels at which larger images are compared."""


def visible_spread(low: Sequence[Tensor] | Tensor, high: Sequence[Tensor] | Tensor) -> float | None:
    """How far the images at the two ends of a direction differ in pixels, over how far images at one end differ.

    |m_H - m_L| / sqrt((V_L + V_H) / 2), with m the mean image of an end and V = sum_i |x_i - m|^2 / (n - 1). Random
    groups of n images have about sqrt(2 / n).

    Args:
        low: uint8 images (C, H, W) at one end, of any sizes.
        high: those at the other.

    Returns:
        The ratio; None with fewer than two images at an end.
    """
    if min(len(low), len(high)) < 2:
        return None
    pixels = _comparable([*low, *high])
    ends = pixels[: len(low)], pixels[len(low) :]
    across = (ends[0].mean(0) - ends[1].mean(0)).square().sum()
    within = torch.stack([end.var(0).sum() for end in ends]).mean()
    # Equal images at an end still have the resolution of a pixel.
    return float((across / within.clamp_min(pixels.shape[1] / 255**2)).sqrt())


def _comparable(images: Sequence[Tensor]) -> Tensor:
    """(N, P) float64 pixels from 0 to 1 of images of one size, at most 32 x 32."""
    small = [thumbnail(image).double() / 255 for image in images]
    if len({image.shape for image in small}) > 1 or max(small[0].shape[1:]) > COMPARED_SIDE:
        size = (COMPARED_SIDE, COMPARED_SIDE)
        small = [F.interpolate(image[None], size, mode="bilinear", antialias=True)[0] for image in small]
    return torch.stack(small).flatten(1)


DEVIATIONS = (-3.0, -1.5, 1.5, 3.0)
"""Moves of a feature, in standard deviations of its class along the direction."""
MOST_CLASSES = 20
"""Shown by default."""


@dataclass(frozen=True)
class DirectionView:
    """One direction of a class."""

    variance: float
    share: float
    """Of the total variance of the class."""
    low: Tensor
    """Rows of the images with the smallest projections, the smallest first."""
    high: Tensor
    """Rows of the images with the largest, the largest first."""
    landings: tuple[Landing, ...]
    """For each of `DEVIATIONS`."""
    visible: float | None = None
    """`visible_spread` of a tenth of the class at each end, from 2 to 20 images; None for fewer than 4 images."""
    judged: JudgedEnds | None = None
    corrected_p: float | None = None
    """The larger p of `judged`, corrected for the number of directions in the atlas."""


@dataclass(frozen=True)
class ClassView:
    """One class and its directions."""

    label: int
    images: int
    moved: int | None
    """Row of the image whose feature is moved, the nearest to the class mean; None if there is no direction."""
    directions: tuple[DirectionView, ...]

    @property
    def most_telling(self) -> int | None:
        """Number of the direction with the largest share x visible spread, from 0; None if there is no direction."""
        scores = [direction.share * (direction.visible or 0) for direction in self.directions]
        return scores.index(max(scores)) if scores else None


@dataclass(frozen=True)
class Atlas:
    """The directions of several classes of a run."""

    observed: Observed
    classes: tuple[ClassView, ...]
    requested: int
    """Directions of each class; a class may have fewer."""
    judge: str | None = None
    """Description of the network that judged the ends."""

    @property
    def judged(self) -> list[DirectionView]:
        """The directions that the judge tested."""
        return [direction for view in self.classes for direction in view.directions if direction.judged is not None]

    def as_json(self) -> dict[str, Any]:
        """Plain values; images are positions among the training images of the data set."""
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
            "classes": [
                {
                    "name": self.observed.classes[view.label],
                    "images": view.images,
                    "moved": None if view.moved is None else int(self.observed.indices[view.moved]),
                    "most_telling": view.most_telling,
                    "directions": [self._direction_json(direction) for direction in view.directions],
                }
                for view in self.classes
            ],
        }

    def _direction_json(self, direction: DirectionView) -> dict[str, Any]:
        indices, names = self.observed.indices, self.observed.classes
        landings = [
            {
                "nearest": indices[landing.nearest].tolist(),
                "classes": [names[label] for label in self.observed.labels[landing.nearest].tolist()],
                "distances": landing.distances.tolist(),
                "probabilities": landing.probabilities.tolist(),
            }
            for landing in direction.landings
        ]
        judged = direction.judged
        return {
            "variance": direction.variance,
            "share": direction.share,
            "low": indices[direction.low].tolist(),
            "high": indices[direction.high].tolist(),
            "visible_spread": direction.visible,
            "landings": landings,
            "judged": None if judged is None else asdict(judged) | {"corrected_p": direction.corrected_p},
        }


def make_atlas(
    observed: Observed,
    *,
    classes: Sequence[str] = (),
    directions: int = 5,
    images: int = 6,
    judge: Path | None = None,
    device: torch.device | str = "cpu",
) -> Atlas:
    """The leading directions of classes, with images at their ends and features moved along them.

    Args:
        observed: the run.
        classes: names; by default all, or the first 20.
        directions: of each class.
        images: at each end, and nearest to each moved feature; at most half of the class at an end.
        judge: folder of another run, whose features test the separation of the ends.
        device: to compute the judge's features on.
    """
    for name in classes:
        check_choice("classes", name, observed.classes)
    labels = [observed.classes.index(name) for name in dict.fromkeys(classes)]
    labels = labels or list(range(len(observed.classes)))[:MOST_CLASSES]
    features = None if judge is None else judge_features(judge, observed, device)
    draws = max(1999, 40 * directions * len(labels))  # enough for a small corrected p
    views = tuple(_class_view(observed, label, directions, images, features, draws) for label in labels)
    if judge is None:
        return Atlas(observed, views, directions)
    config = load_classifier(judge).config
    name = f"{config.network}, {config.method}, seed {config.seed}"
    return Atlas(observed, _corrected(views), directions, name)


def judge_features(judge: Path, observed: Observed, device: torch.device | str = "cpu") -> Tensor:
    """(N, B) features of the same images by the network of another run."""
    if judge.resolve() == observed.folder.resolve():
        raise ValueError(f"judge must be another run than the observed one, got {judge}")
    trained = load_classifier(judge)
    mine, theirs = observed.trained.config, trained.config
    if (mine.channels, mine.image_size) != (theirs.channels, theirs.image_size):
        raise ValueError(
            f"judge must be a run on images of {mine.channels} channels and size {mine.image_size}, "
            f"got {theirs.channels} channels and size {theirs.image_size}"
        )
    return features_of(trained, observed.data, observed.indices, device)


def _class_view(observed: Observed, label: int, count: int, images: int, judge: Tensor | None, draws: int) -> ClassView:
    rows = observed.rows_of(label)
    directions = class_directions(observed, label, count)
    if len(directions.vectors) == 0:
        return ClassView(label, len(rows), None, ())
    members = observed.features[rows]
    mean = members.mean(0)
    moved = int(rows[(members - mean).norm(dim=1).argmin()])
    projections = directions.vectors @ (members - mean).T
    seed = observed.trained.config.seed
    judged = [] if judge is None else judge_ends(judge[rows], projections, draws=draws, seed=seed)
    views = []
    for number, (vector, variance) in enumerate(zip(directions.vectors, directions.variances.tolist(), strict=True)):
        order = rows[projections[number].argsort(stable=True)]
        shown = min(images, len(rows) // 2)
        landings = tuple(
            land(observed, observed.features[moved] + step * variance**0.5 * vector, images, without=moved)
            for step in DEVIATIONS
        )
        ends = judged[number] if judged else None
        share = float(directions.shares[number])
        compared = min(max(2, min(len(rows) // 10, SEEN_AT_END)), len(rows) // 2)
        visible = visible_spread(observed.images(order[:compared]), observed.images(order[-compared:]))
        views.append(DirectionView(variance, share, order[:shown], order.flip(0)[:shown], landings, visible, ends))
    return ClassView(label, len(rows), moved, tuple(views))


def holm(values: Sequence[float]) -> list[float]:
    """P-values corrected for their number by Holm's method, which is valid under any dependence.

    The i-th smallest of n becomes the largest of (n - j + 1) p_j over j <= i, at most 1.

    Example:
        >>> holm([0.04, 0.01, 0.5])
        [0.08, 0.03, 0.5]
    """
    corrected, largest = [0.0] * len(values), 0.0
    for rank, index in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        largest = max(largest, (len(values) - rank) * values[index])
        corrected[index] = min(1.0, largest)
    return corrected


def _corrected(views: Sequence[ClassView]) -> tuple[ClassView, ...]:
    """The views with p-values corrected over all directions of all classes."""
    judged = [direction.judged for view in views for direction in view.directions if direction.judged is not None]
    values = iter(holm([max(ends.p, ends.shuffled_p) for ends in judged]))
    return tuple(
        replace(
            view,
            directions=tuple(
                direction if direction.judged is None else replace(direction, corrected_p=next(values))
                for direction in view.directions
            ),
        )
        for view in views
    )
