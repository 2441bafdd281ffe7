"""Target features: draws from N(a, lambda Sigma_y), or moves along a given direction."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from isda._utils.seeds import generator
from isda.analysis.training_features import Observed
from isda.functional.sampling import symmetric_root

STRENGTH = 0.5
"""For runs of methods without one: the paper's lambda_0 on CIFAR."""

# Apart from the seeds of starts and of runs.
_MOVES = 0x6D6F7665


def strength_of(observed: Observed) -> float:
    """lambda_0 of the run's method where it has one, else STRENGTH."""
    return float(observed.trained.config.method_options.get("lambda_0") or STRENGTH)


def check_strength(strength: float) -> None:
    """A ValueError for what is no lambda."""
    if not 0 <= strength < math.inf:
        raise ValueError(f"strength must be at least 0 and finite, got {strength}")


def augmented_features(
    observed: Observed, rows: Tensor, count: int, *, strength: float | None = None, seed: int = 0
) -> Tensor:
    """(N, count, A) float64 draws from N(a, lambda Sigma_y) for the features a of rows (N,), as ISDA augments them.

    Args:
        observed: the run.
        rows: of ``observed.features``.
        count: draws for each.
        strength: lambda; that of the run if left out.
        seed: what an image gets follows from it and the image, whatever the other rows.
    """
    strength = strength_of(observed) if strength is None else strength
    check_strength(strength)
    roots: dict[int, Tensor] = {}
    moved = []
    for row in rows.tolist():
        label, a = int(observed.labels[row]), observed.features[row]
        if label not in roots:
            roots[label] = symmetric_root(observed.covariance.covariance(label)[None])[0]
        chance = generator(seed, _MOVES, int(observed.indices[row]))
        noise = torch.randn(count, len(a), generator=chance, dtype=a.dtype)
        moved.append(a + math.sqrt(strength) * noise @ roots[label])
    return torch.stack(moved)


def features_along(observed: Observed, rows: Tensor, direction: Tensor, distances: Sequence[float]) -> Tensor:
    """(N, K, A) features moved along a direction v (A,): a + d sqrt(v' Sigma_y v) v for unit v.

    Args:
        observed: the run.
        rows: (N,) of ``observed.features``.
        direction: (A,), of any length but 0.
        distances: d, in standard deviations of the class along the direction.
    """
    if direction.shape != observed.features.shape[1:] or not direction.norm() > 0:
        raise ValueError(
            f"direction must be {observed.features.shape[1]} numbers, not all 0, got {tuple(direction.shape)}"
        )
    unit = (direction / direction.norm()).to(observed.features)
    spread = {
        label: (unit @ observed.covariance.covariance(label) @ unit).clamp_min(0).sqrt()
        for label in observed.labels[rows].unique().tolist()
    }
    deviation = torch.stack([spread[label] for label in observed.labels[rows].tolist()])
    steps = torch.tensor(list(distances), dtype=unit.dtype)
    return observed.features[rows][:, None] + (deviation[:, None] * steps)[..., None] * unit
