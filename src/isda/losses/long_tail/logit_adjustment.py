"""Logit adjustment (Menon et al., ICLR 2021): the loss of a balanced world from samples of an unbalanced one."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from isda.functional.long_tail import prior_offsets
from isda.losses.long_tail.providers import OffsetTable

__all__ = ["LogitAdjustment"]


class LogitAdjustment(OffsetTable):
    """o_yj = tau (log pi_j - log pi_y), pi_c = n_c / n.

    Args:
        counts: (C,) training samples of each class.
        tau: 1 is consistent for the balanced error; 0 is no adjustment.

    Example:
        >>> import torch
        >>> LogitAdjustment([80, 20]).rows(torch.tensor([1]))  # log 4
        tensor([[1.3863, 0.0000]], dtype=torch.float64)
    """

    def __init__(self, counts: Tensor | Sequence[float], tau: float = 1.0) -> None:
        super().__init__(prior_offsets(counts, tau))
        self.tau = float(tau)

    def extra_repr(self) -> str:
        """Show the settings in repr()."""
        return f"tau={self.tau:g}"
