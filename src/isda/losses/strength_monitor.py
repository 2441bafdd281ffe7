"""Is the strength far too large? Looked at in the first and in every hundredth call."""

from __future__ import annotations

import torch
from torch import Tensor

from isda.devices import READ_EVERY
from isda.losses.warning import warn

__all__ = ["StrengthMonitor"]

_RATIO = 10.0


class StrengthMonitor:
    """Checks, every hundredth call, whether the variance term is far larger than the differences between the logits."""

    def __init__(self, lambda_0: float) -> None:
        self._lambda_0, self._calls = lambda_0, 0

    def check(self, variance: Tensor, logits: Tensor, strength: float) -> None:
        """Warn if strength/2 * variance (N, C) is on average ten times what the logits (N, C) of a sample vary by."""
        self._calls += 1
        if self._calls % READ_EVERY != 1 or strength == 0:
            return
        means = torch.stack([variance.detach().mean(), logits.detach().std(1, correction=0).mean()])
        average, spread = means.tolist()
        added = strength / 2 * average
        if added > _RATIO * spread:
            warn(
                f"the variance term averages {added:.3g} where the logits of a sample vary by {spread:.3g}: at "
                f"strength {strength:.3g} it swamps them; lower lambda_0 (now {self._lambda_0:g})"
            )
