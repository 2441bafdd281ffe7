"""Figures beside the picture: how well features keep the classes apart, in the space where the classifier reads them.

A map shows neighbourhoods and distorts distances; these are computed without it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Separation", "measure_separation"]

AT_ONCE = 1000


@dataclass(frozen=True)
class Separation:
    """Three ways to say it."""

    silhouette: float
    """Mean over samples of (b - a) / max(a, b): a is the mean distance to its own class, b to the nearest other."""
    knn_accuracy: float
    """Share of samples whose k nearest others mostly have their class, in percent; the nearest decides a tie."""
    scatter: float
    """Trace of the scatter within classes over that between: smaller is tighter."""


def measure_separation(features: Tensor, labels: Tensor, neighbours: int = 10) -> Separation:
    """Silhouette (Rousseeuw, 1987), accuracy of the nearest neighbours, and within/between scatter.

    Args:
        features: (N, A).
        labels: (N,), of at least two classes.
        neighbours: k.
    """
    if len(labels.unique()) < 2:
        raise ValueError("labels must be of at least two classes to be kept apart, got one")
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
    for rows in torch.arange(len(labels)).split(AT_ONCE):
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
