"""Leading eigenvectors of a class's covariance, and the training images nearest to a feature moved along them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from isda.lab.analysis.training_features import Observed


class Directions(NamedTuple):
    """Eigenvectors of a class's covariance in order of decreasing variance."""

    vectors: Tensor
    """(K, A) orthonormal; the entry of largest magnitude of each is positive."""
    variances: Tensor
    """(K,) eigenvalues."""
    shares: Tensor
    """(K,) shares of the total variance of the class, the trace."""


def class_directions(observed: Observed, label: int, count: int = 5) -> Directions:
    """The ``count`` leading eigenvectors of Sigma_c, or fewer if the rank is smaller.

    Args:
        observed: a run, as `isda.lab.analysis.observe` returns it.
        label: the class c.
        count: at most so many.
    """
    if not 0 <= label < len(observed.classes):
        raise ValueError(f"label must be from 0 to {len(observed.classes) - 1}, got {label}")
    return leading_eigenvectors(observed.features[observed.rows_of(label)], count)


def leading_eigenvectors(features: Tensor, count: int) -> Directions:
    """Eigenvectors of the covariance X'X / n of centred features X.

    With fewer rows than columns they come from the n x n Gram matrix: XX'u = n s u has the eigenvector X'u / sqrt(n s).

    Args:
        features: (n, A), any n.
        count: at most so many; variances within rounding error of 0 are omitted.

    Example:
        >>> directions = leading_eigenvectors(torch.tensor([[0.0, -2.0], [0.0, 2.0], [1.0, 0.0], [-1.0, 0.0]]), 2)
        >>> directions.variances.tolist(), directions.vectors.tolist()
        ([2.0, 0.5], [[0.0, 1.0], [1.0, 0.0]])
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    rows, width = features.shape
    if rows < 2:
        return Directions(features.new_zeros(0, width), features.new_zeros(0), features.new_zeros(0))
    centred = features - features.mean(0)
    small = centred @ centred.T if rows < width else centred.T @ centred
    values, vectors = torch.linalg.eigh(small / rows)
    values, vectors = values.flip(0), vectors.flip(1)
    # Rounding error of the eigenvalues, and of features that are all equal.
    eps = torch.finfo(values.dtype).eps
    rounding = torch.maximum(values[0] * max(rows, width) * eps, (eps * features.abs().max()).square() * 10 * width)
    kept = min(count, int((values > rounding).sum()))
    values, vectors = values[:kept], vectors[:, :kept].T
    if rows < width:
        vectors = vectors @ centred
        vectors = vectors / vectors.norm(dim=1, keepdim=True)
    largest = vectors.gather(1, vectors.abs().argmax(1, keepdim=True))
    total = centred.square().sum() / rows
    return Directions(vectors * largest.sign() + 0.0, values, values / total)


@dataclass(frozen=True)
class Landing:
    """What is near a point of feature space."""

    nearest: Tensor
    """(M,) rows of the nearest training images in feature space, the nearest first."""
    distances: Tensor
    """(M,) their distances."""
    probabilities: Tensor
    """(C,) of the classifier at the point."""


def land(
    observed: Observed, feature: Tensor, count: int, *, label: int | None = None, without: int | None = None
) -> Landing:
    """The nearest training images and the class probabilities at a point of feature space.

    Args:
        observed: the run.
        feature: (A,)
        count: of nearest training images.
        label: search only images of this class; by default all.
        without: a row to leave out, such as that of the moved image.
    """
    rows, distances = nearest(observed, feature, count, label=label, without=without)
    return Landing(rows, distances, observed.logits(feature).softmax(0))


def nearest(
    observed: Observed, feature: Tensor, count: int, *, label: int | None = None, without: int | None = None
) -> tuple[Tensor, Tensor]:
    """Rows (M,) of the training images nearest to a feature by Euclidean distance, and the distances; see `land`."""
    rows = torch.arange(len(observed.labels)) if label is None else observed.rows_of(label)
    rows = rows[rows != without] if without is not None else rows
    distances = (observed.features[rows] - feature).norm(dim=1)
    order = distances.argsort(stable=True)[:count]
    return rows[order], distances[order]
