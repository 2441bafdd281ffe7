"""Features in the plane by t-SNE (van der Maaten and Hinton, 2008), and measures of class separation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


def embed(features: Tensor, *, perplexity: float = 30.0, seed: int = 0) -> Tensor:
    """(N, 2) float64 points in the plane for features (N, A); the same for the same seed.

    Args:
        features: of any images.
        perplexity: about the number of neighbours that count, below N.
        seed: of the embedding.

    Raises:
        ValueError: an option is out of range, or the features have no map, see `without_map`.
    """
    if not 1 <= perplexity < len(features):
        raise ValueError(f"perplexity must be from 1 to below the {len(features)} images, got {perplexity:g}")
    if reason := without_map(features):
        raise ValueError(f"features must be finite and differ between images, but {reason}")
    # One scale for all coordinates: the unit is arbitrary, but the spread of a coordinate is its importance. First by
    # the largest number, whose square may overflow.
    scaled = features / features.abs().max()
    scaled = scaled - scaled.mean(0)
    scaled = scaled / scaled.square().mean().sqrt()
    if scaled.shape[1] == 1:  # t-SNE starts from two principal components
        scaled = torch.nn.functional.pad(scaled, (0, 1))
    return torch.as_tensor(_tsne(scaled.numpy(), perplexity, seed)).double()


def without_map(features: Tensor) -> str | None:
    """Why features (N, A) have no map, or None if they have one.

    t-SNE divides by the spread of its start: it ends the process with a segmentation fault if that is zero or NaN.

    Example:
        >>> without_map(torch.ones(3, 2)), without_map(torch.eye(2))
        ('the features of all 3 images are the same', None)
    """
    bad = len(features) - int(features.isfinite().all(1).sum())
    if bad:
        return f"the features of {bad} of {len(features)} images are NaN or infinite"
    largest = float(features.abs().max())
    # Differences below the precision of the network's float32 features are rounding errors.
    spread = float((features - features[0]).abs().max())
    if spread <= torch.finfo(torch.float32).eps * largest:
        return f"the features of all {len(features)} images are the same"
    return None


def _tsne(features: Any, perplexity: float, seed: int) -> Any:
    from sklearn.manifold import TSNE

    return TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(features)


ROWS_AT_ONCE = 1000


@dataclass(frozen=True)
class Separation:
    """Three measures of how well features separate the classes."""

    silhouette: float
    """Mean over samples of (b - a) / max(a, b): a is the mean distance to its own class, b to the nearest other."""
    knn_accuracy: float
    """Accuracy in percent of a vote of the k nearest others; the nearest decides a tie."""
    scatter: float
    """Trace of the scatter within classes over that between classes: smaller is tighter."""


def measure_separation(features: Tensor, labels: Tensor, neighbours: int = 10) -> Separation:
    """Silhouette (Rousseeuw, 1987), accuracy of the nearest neighbours, and within/between scatter.

    Args:
        features: (N, A).
        labels: (N,), of at least two classes.
        neighbours: k.
    """
    if len(labels.unique()) < 2:
        raise ValueError("labels must be of at least two classes, got one")
    if not 1 <= neighbours < len(labels):
        raise ValueError(f"neighbours must be from 1 to {len(labels) - 1}, got {neighbours}")
    from sklearn.metrics import silhouette_score

    return Separation(
        float(silhouette_score(features.numpy(), labels.numpy())),
        _knn_accuracy(features, labels, neighbours),
        _scatter(features, labels),
    )


def _knn_accuracy(features: Tensor, labels: Tensor, neighbours: int) -> float:
    classes, hits = int(labels.max()) + 1, 0
    for rows in torch.arange(len(labels)).split(ROWS_AT_ONCE):
        distance = torch.cdist(features[rows], features)
        distance[torch.arange(len(rows)), rows] = torch.inf
        nearest = labels[distance.topk(neighbours, largest=False).indices]
        votes = torch.zeros(len(rows), classes, dtype=features.dtype)
        votes.scatter_add_(1, nearest, torch.ones_like(nearest, dtype=features.dtype))
        votes.scatter_add_(1, nearest[:, :1], torch.full((len(rows), 1), 0.5, dtype=features.dtype))
        hits += int((votes.argmax(1) == labels[rows]).sum())
    return 100 * hits / len(labels)


def _scatter(features: Tensor, labels: Tensor) -> float:
    centre, within, between = features.mean(0), 0.0, 0.0
    for label in labels.unique().tolist():
        members = features[labels == label]
        mean = members.mean(0)
        within += float((members - mean).square().sum())
        between += len(members) * float((mean - centre).square().sum())
    return within / between if between else float("inf")
