"""Rows of features, each with the name of its class or without one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

__all__ = ["UNLABELLED", "Rows"]

UNLABELLED = ""
"""The name of a class that nobody has told."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Features (N, A) and the names of their classes (N,), empty for unlabelled rows.

    Example:
        >>> rows = Rows(np.zeros((3, 2)), np.array(["cat", "", "dog"]), "a file")
        >>> rows.labelled.tolist(), rows.take([0]).names.tolist()
        ([True, False, True], ['cat'])
    """

    features: NDArray[np.float64]
    names: NDArray[np.str_]
    source: str
    """Where they come from, for messages."""
    numbers: NDArray[np.int64] | None = None
    """Which row of the source each is, counted from 1; their order if left out."""
    columns: tuple[str, ...] | None = None
    """(A,) names of the features of a table; None if they have none."""
    label: str | None = None
    """The name of its column of labels."""

    @property
    def labelled(self) -> NDArray[np.bool_]:
        """(N,) which rows have a label."""
        return self.names != UNLABELLED

    @property
    def row_numbers(self) -> NDArray[np.int64]:
        """(N,) which row of the source each is, counted from 1."""
        return np.arange(1, len(self.names) + 1) if self.numbers is None else self.numbers

    def take(self, chosen: NDArray[np.bool_] | NDArray[np.int64] | Sequence[int]) -> Rows:
        """Some of the rows."""
        places = np.asarray(chosen)
        return replace(self, features=self.features[places], names=self.names[places], numbers=self.row_numbers[places])

    def __len__(self) -> int:
        return len(self.names)
