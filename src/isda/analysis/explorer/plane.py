"""A map of the features in two dimensions that any point can be put on: the plane in which the classes lie apart."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from isda.analysis.directions.eigenvectors import leading_eigenvectors

__all__ = ["Plane", "apart", "class_plane"]


class Plane(NamedTuple):
    """An orthogonal projection."""

    origin: Tensor
    """(A,) the mean of the class means."""
    axes: Tensor
    """(2, A) orthonormal; zero where features do not vary in two directions."""

    def place(self, features: Tensor) -> Tensor:
        """(..., 2) where features (..., A) lie."""
        return (features - self.origin) @ self.axes.T


def class_plane(features: Tensor, labels: Tensor) -> Plane:
    """The first two principal components of the class means; of two classes or one, also those within the classes.

    Args:
        features: (N, A)
        labels: (N,)

    Example:
        >>> corners = torch.tensor([[0.0, 0.0, 1.0], [4.0, 0.0, 1.0], [0.0, 2.0, 1.0], [4.0, 2.0, 1.0]])
        >>> class_plane(corners, torch.arange(4)).axes.tolist()
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    """
    present = labels.unique()
    means = torch.stack([features[labels == label].mean(0) for label in present])
    axes = leading_eigenvectors(means, 2).vectors
    if len(axes) < 2:
        within = features - means[torch.searchsorted(present, labels)]
        rest = leading_eigenvectors(within - within @ axes.T @ axes, 2 - len(axes)).vectors
        axes = torch.cat([axes, rest, features.new_zeros(2, features.shape[1])])[:2]
    return Plane(means.mean(0), axes)


def apart(places: Tensor, width: float, height: float) -> Tensor:
    """(K, 2) places for words that do not lie on each other: from the top down, each is lowered until it is free.

    Args:
        places: (K, 2) where they should be.
        width: of a word.
        height: of a word.

    Example:
        >>> apart(torch.tensor([[0.0, 0.0], [0.5, 0.25], [9.0, 0.0]]), width=1.0, height=1.0).tolist()
        [[0.0, -0.75], [0.5, 0.25], [9.0, 0.0]]
    """
    free = places.clone()
    order = places[:, 1].argsort(descending=True, stable=True)
    for done, index in enumerate(order.tolist()):
        near = free[order[:done]]
        near = near[(near[:, 0] - free[index, 0]).abs() < width]
        for y in near[:, 1].sort(descending=True).values:
            if (y - free[index, 1]).abs() < height:
                free[index, 1] = y - height
    return free
