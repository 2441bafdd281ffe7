"""Target features: draws from N(a, lambda Sigma_y), or moves along a given direction."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from isda.covariance import FullCovariance
from isda.lab.choices import check_number
from isda.lab.seeds import generator

if TYPE_CHECKING:
    from isda.lab.analysis.training_features import Observed

DEFAULT_STRENGTH = 0.5
"""For runs of methods without lambda_0: the paper's value on CIFAR."""

# Distinct from the seeds of starts and of runs.
_MOVES = 0x6D6F7665


def strength_of(observed: Observed) -> float:
    """lambda_0 of the run's method if it is a number, else 0.5."""
    strength = observed.trained.config.method_options.get("lambda_0")
    return DEFAULT_STRENGTH if strength in (None, 0) else float(strength)


def class_covariance(observed: Observed, label: int) -> Tensor:
    """(A, A) float64 covariance of the features of a class; its diagonal only if the run's method has that (ImageNet).

    One class at a time: those of a thousand classes do not fit into memory.
    """
    features = observed.features[observed.rows_of(label)]
    model = FullCovariance(1, features.shape[1], dtype=torch.float64)
    model.update(features, torch.zeros(len(features), dtype=torch.int64))
    matrix = model.covariance(0)
    diagonal = observed.trained.config.method_options.get("covariance") == "diagonal"
    return torch.diag(matrix.diagonal()) if diagonal else matrix


def symmetric_root(matrix: Tensor) -> Tensor:
    """S with S S = matrix for a symmetric positive semi-definite matrix of any rank."""
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp_min(0).sqrt()) @ vectors.mT


def class_root(observed: Observed, label: int) -> Tensor:
    """(A, A) symmetric root of `class_covariance`."""
    return symmetric_root(class_covariance(observed, label))


def augmented_features(
    observed: Observed,
    rows: Tensor,
    count: int,
    *,
    strength: float | None = None,
    seed: int = 0,
    root: Callable[[int], Tensor] | None = None,
) -> Tensor:
    """(N, count, A) float64 draws from N(a, lambda Sigma_y) for the features a of rows (N,), as ISDA augments them.

    Args:
        observed: the run.
        rows: of ``observed.features``.
        count: draws for each.
        strength: lambda; by default that of the run.
        seed: the draws of an image depend on it and on the image, not on the other rows. With another strength they
            lie on the same rays from a.
        root: by default `class_root` of the run; a caller that keeps roots passes its own.
    """
    strength = strength_of(observed) if strength is None else strength
    check_number("strength", strength)
    root = root or lru_cache(maxsize=None)(partial(class_root, observed))
    moved = []
    for row in rows.tolist():
        label, a = int(observed.labels[row]), observed.features[row]
        rng = generator(seed, _MOVES, int(observed.indices[row]))
        noise = torch.randn(count, len(a), generator=rng, dtype=a.dtype)
        moved.append(a + math.sqrt(strength) * noise @ root(label))
    return torch.stack(moved)


def features_along(observed: Observed, rows: Tensor, direction: Tensor, distances: Sequence[float]) -> Tensor:
    """(N, K, A) features moved along a direction v (A,): a + d sqrt(v' Sigma_y v) v for unit v.

    Args:
        observed: the run.
        rows: (N,) of ``observed.features``.
        direction: (A,), not zero.
        distances: d, in standard deviations of the class along the direction.
    """
    if direction.shape != observed.features.shape[1:] or not direction.norm() > 0:
        raise ValueError(
            f"direction must be {observed.features.shape[1]} numbers, not all 0, got {tuple(direction.shape)}"
        )
    unit = (direction / direction.norm()).to(observed.features)
    spread = {
        label: (unit @ class_covariance(observed, label) @ unit).clamp_min(0).sqrt()
        for label in observed.labels[rows].unique().tolist()
    }
    deviation = torch.stack([spread[label] for label in observed.labels[rows].tolist()])
    steps = torch.tensor(list(distances), dtype=unit.dtype)
    return observed.features[rows][:, None] + (deviation[:, None] * steps)[..., None] * unit
