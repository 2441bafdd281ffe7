"""What provides the terms of the closed form beside the covariance: offsets o_yj of margins, shifts delta_y of means.

z_j + lambda/2 (w_j - w_y)' Sigma_y (w_j - w_y) + alpha (w_j - w_y)' delta_y + o_yj: a covariance model provides Sigma.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from torch import Tensor, nn

from isda.covariance import CovarianceModel

__all__ = ["MeanShift", "Offset", "OffsetTable"]


class Offset(nn.Module, ABC):
    """Offsets o_yj of the margins z_j - z_y, with o_yy = 0; a new one is a new file with ``rows``."""

    num_classes: int

    @abstractmethod
    def rows(self, classes: Tensor) -> Tensor:
        """(K, C) o_yj for y = classes[k]."""


class OffsetTable(Offset):
    """Offsets that are known from the start, as a table (C, C) with a diagonal of zeros; no part of the state."""

    table: Tensor

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.num_classes = len(table)
        self.register_buffer("table", table, persistent=False)

    def rows(self, classes: Tensor) -> Tensor:
        """(K, C) rows of the table."""
        return self.table.index_select(0, classes)


class MeanShift(nn.Module, ABC):
    """Shifts delta_y of the features of a class, which are scaled by alpha; a new one is a new file with ``vectors``.

    alpha grows with the strength lambda: it is the given one where lambda = lambda_0, and constant for lambda_0 = 0.
    """

    def __init__(self, alpha: float) -> None:
        super().__init__()
        if not 0 <= alpha < math.inf:
            raise ValueError(f"alpha must be a finite number >= 0, got {alpha!r}")
        self.alpha = float(alpha)

    @abstractmethod
    def vectors(self, covariance: CovarianceModel) -> Tensor:
        """(C, A) the shifts, from what the covariance model knows of the classes; no gradient flows into them."""

    def check(self, covariance: CovarianceModel) -> None:
        """Raise ValueError for a covariance model that does not know what is needed."""
