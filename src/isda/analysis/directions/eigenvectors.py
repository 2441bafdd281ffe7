"""Leading eigenvectors of a class's covariance, and the training images nearest to a feature moved along them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from isda.analysis.training_features import Observed


class Directions(NamedTuple):
    """Eigenvectors of a class's covariance, the one of the largest variance first."""

    vectors: Tensor
    """(K, A) orthonormal; the entry of the largest size of each is positive."""
    variances: Tensor
    """(K,) eigenvalues."""
    shares: Tensor
    """(K,) of the variance of the class, its trace."""


def class_directions(observed: Observed, label: int, count: int = 5) -> Directions:
    """The ``count`` leading eigenvectors of Sigma_c, or as many as there are: one fewer than images, at most.

    Args:
        observed: a run, as `isda.analysis.observe` returns it.
        label: the class c.
        count: how many at most.
    """
    if not 0 <= label < len(observed.classes):
        raise ValueError(f"label must be from 0 to {len(observed.classes) - 1}, got {label}")
    return leading_eigenvectors(observed.features[observed.rows_of(label)], count)


def leading_eigenvectors(features: Tensor, count: int) -> Directions:
    """Eigenvectors of the covariance X'X / n of centred features X.

    With fewer rows than columns they come from the n x n Gram matrix: XX'u = n s u has the eigenvector X'u / sqrt(n s).

    Args:
        features: (n, A), any n.
        count: how many at most; variances that are nothing but rounding are left out.

    Example:
        >>> found = leading_eigenvectors(torch.tensor([[0.0, -2.0], [0.0, 2.0], [1.0, 0.0], [-1.0, 0.0]]), 2)
        >>> found.variances.tolist(), found.vectors.tolist()
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
    # Rounding: of the eigenvalues, and of features that are all the same.
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
    """Where a moved feature lands."""

    nearest: Tensor
    """(M,) rows of the training images nearest to it in feature space, the nearest first."""
    distances: Tensor
    """(M,) theirs."""
    probabilities: Tensor
    """(C,) of the classifier there."""


def land(
    observed: Observed, feature: Tensor, count: int, *, label: int | None = None, without: int | None = None
) -> Landing:
    """What is at a point of feature space.

    Args:
        observed: the run.
        feature: (A,)
        count: of nearest training images.
        label: look among those of this class; else among all.
        without: a row that is left out, such as the one that was moved.
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
