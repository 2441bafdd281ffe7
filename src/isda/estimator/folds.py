"""Stratified folds that small classes survive: every row is held out once, and every class stays in training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import check_cv

__all__ = ["check_folds", "splits"]


def splits(cv: Any, inputs: NDArray[Any], labels: NDArray[Any], seed: int) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """Indices of training and held-out rows, for every fold.

    A number of folds is lowered to the size of the largest class. A class with fewer rows than folds is held out in
    as many folds as it has rows; the only row of a class is never held out.

    Args:
        cv: number of folds, a splitter of scikit-learn, or the splits themselves.
        inputs: (N, A) rows.
        labels: (N,) labels.
        seed: of the order in which a number of folds deals the rows.

    Example:
        >>> for train, held_out in splits(5, np.zeros((5, 1)), np.array([0, 0, 1, 1, 2]), seed=0):
        ...     print(np.array([0, 0, 1, 1, 2])[train], np.array([0, 0, 1, 1, 2])[held_out])
        [0 1 2] [0 1]
        [0 1 2] [0 1]
    """
    check_folds(cv)
    if isinstance(cv, int | np.integer):
        return list(_dealt(int(cv), labels, seed))
    return [(np.asarray(a), np.asarray(b)) for a, b in check_cv(cv, labels, classifier=True).split(inputs, labels)]


def check_folds(cv: Any) -> None:
    """Raise ValueError for what is neither a number of folds, a splitter, nor splits."""
    if isinstance(cv, int | np.integer) and not isinstance(cv, bool):
        if cv < 2:
            raise ValueError(f"cv must be at least 2 folds, got {cv}")
    elif isinstance(cv, str) or not (hasattr(cv, "split") or isinstance(cv, Iterable)):
        raise ValueError(f"cv must be a number of folds, a splitter or a list of splits, got {cv!r}")


def _dealt(folds: int, labels: NDArray[Any], seed: int) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    order = np.random.default_rng(seed).permutation(len(labels))
    _, encoded, sizes = np.unique(labels[order], return_inverse=True, return_counts=True)
    folds = min(folds, int(sizes.max()))
    fold, first = np.full(len(labels), -1), 0
    for index, size in enumerate(sizes):
        if size > 1:
            # Go on where the last class stopped: the folds are about as large as each other.
            fold[order[encoded == index]] = (first + np.arange(size)) % folds
            first += size
    for number in range(folds):
        if (fold == number).any():
            yield np.flatnonzero(fold != number), np.flatnonzero(fold == number)
