"""Whether another network, which never heard of a direction, tells the images at its two ends apart.

Two chances are tested. Random groups of the class: are pairs across the ends further apart than pairs of the class are?
And the ends shuffled: images far out may be far from everything, so which end each is at must matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isda import seeds

__all__ = ["Judged", "holm", "judge_ends"]

MOST_IMAGES = 2000
"""Of a class, from which random groups are drawn."""
LARGEST_END = 50
_AT_ONCE = 200
# Apart from the seeds of steps and epochs.
_GROUPS, _SHUFFLED = 0x67726F75, 0x73687566


@dataclass(frozen=True)
class Judged:
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


def judge_ends(features: Tensor, projections: Tensor, *, draws: int = 1999, seed: int = 0) -> list[Judged]:
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
) -> Judged:
    ends = features[torch.cat([order[:size], order[-size:]])]
    between = torch.cdist(ends, ends)
    across = between[:size, size:].mean()
    within = (between[:size, :size].sum() + between[size:, size:].sum()) / (2 * size * (size - 1))
    dealt = torch.cat([_drawn(between, size, part, chance) for part in _parts(len(groups))])
    return Judged(
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
