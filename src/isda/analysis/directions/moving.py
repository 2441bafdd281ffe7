"""A feature that is moved along a direction: which training images it lands among, and what the classifier says."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from isda.analysis.observing import Observed

__all__ = ["Landing", "land", "nearest"]


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
