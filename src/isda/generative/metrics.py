"""How near generated images are to real ones, on the features of a classifier; all in float64.

Features of our own classifiers take the place of Inception's: figures compare generators under one judge, and are not
those of other publications.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["diversity_by_class", "frechet_distance", "kernel_distance", "spread_by_class"]

ROWS_AT_ONCE = 1000


def frechet_distance(real: Tensor, generated: Tensor) -> float:
    """|m - m'|^2 + tr(S + S' - 2 (S S')^(1/2)) of means and covariances: FID (Heusel et al., 2017).

    (S S')^(1/2) has the trace of (S^(1/2) S' S^(1/2))^(1/2), which is symmetric: two eigen-decompositions and no
    complex numbers.

    Args:
        real: (N, A) features.
        generated: (M, A) features.

    Example:
        >>> points = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0], [2.0, 2.0]])
        >>> round(frechet_distance(points, points + torch.tensor([3.0, 4.0])), 9)
        25.0
    """
    (mean, covariance), (other_mean, other_covariance) = (_moments(rows) for rows in (real, generated))
    values, vectors = torch.linalg.eigh(covariance)
    root = (vectors * values.clamp(min=0).sqrt()) @ vectors.T
    between = torch.linalg.eigvalsh(root @ other_covariance @ root).clamp(min=0).sqrt().sum()
    distance = (mean - other_mean).square().sum() + covariance.trace() + other_covariance.trace() - 2 * between
    return float(distance)


def _moments(rows: Tensor) -> tuple[Tensor, Tensor]:
    if rows.ndim != 2 or len(rows) < 2:
        raise ValueError(f"features must be (N, A) with N at least 2, got shape {tuple(rows.shape)}")
    rows = rows.double()
    return rows.mean(0), rows.T.cov()


def kernel_distance(real: Tensor, generated: Tensor) -> float:
    """The unbiased estimate of the squared MMD with the kernel k(x, y) = (x.y / A + 1)^3: KID (Binkowski et al., 2018).

    sum_{i != j} k(x_i, x_j) / (N (N - 1)) + the same of y - 2 sum_ij k(x_i, y_j) / (N M); of all images at once, where
    the publication averages over subsets. It may be negative.

    Args:
        real: (N, A) features x.
        generated: (M, A) features y.

    Example:
        >>> kernel_distance(torch.zeros(3, 2), torch.ones(3, 2))
        7.0
    """
    for rows in (real, generated):
        _moments(rows)
    x, y = real.double(), generated.double()
    return float(_mean_kernel(x, x, own=True) + _mean_kernel(y, y, own=True) - 2 * _mean_kernel(x, y))


def _mean_kernel(x: Tensor, y: Tensor, *, own: bool = False) -> Tensor:
    """The mean of k over all pairs, without those of a row with itself if x and y are the same."""
    total = x.new_zeros(())
    for part in x.split(ROWS_AT_ONCE):
        total += (part @ y.T / x.shape[1] + 1).pow(3).sum()
    if not own:
        return total / (len(x) * len(y))
    total -= (x.square().sum(1) / x.shape[1] + 1).pow(3).sum()
    return total / (len(x) * (len(x) - 1))


def spread_by_class(features: Tensor, labels: Tensor, num_classes: int) -> list[float | None]:
    """For each class the mean distance of two of its images; None where there are fewer than two.

    Example:
        >>> spread_by_class(torch.tensor([[0.0], [3.0], [7.0]]), torch.tensor([0, 0, 1]), 2)
        [3.0, None]
    """
    spreads: list[float | None] = []
    for label in range(num_classes):
        rows = features[labels == label].double()
        many = len(rows) * (len(rows) - 1)
        # Differences, not products: distances of images that are nearly the same must not drown in rounding.
        distances = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")
        spreads.append(float(distances.sum()) / many if many else None)
    return spreads


def diversity_by_class(
    real: Tensor, real_labels: Tensor, generated: Tensor, labels: Tensor, num_classes: int
) -> list[float | None]:
    """For each class how far apart two of its generated images are, relative to two real ones: 1 is as diverse.

    Args:
        real: (N, A) features.
        real_labels: (N,) classes.
        generated: (M, A) features.
        labels: (M,) the classes that were intended.
        num_classes: K.

    Example:
        >>> zero = torch.tensor([0, 0])
        >>> diversity_by_class(torch.tensor([[0.0], [4.0]]), zero, torch.tensor([[1.0], [2.0]]), zero, 1)
        [0.25]
    """
    spreads = spread_by_class(real, real_labels, num_classes), spread_by_class(generated, labels, num_classes)
    return [made / there if there and made is not None else None for there, made in zip(*spreads, strict=True)]
