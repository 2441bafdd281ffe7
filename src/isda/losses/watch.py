"""Warnings: of a strength that is far too large, and of a classifier in eval mode."""

from __future__ import annotations

import warnings

from torch import Tensor

_EVERY, _RATIO = 100, 10.0
# Frames from a warning up to the line that calls the criterion, through nn.Module's own.
_CALLER = 7


class SwampWatch:
    """Looks, every hundredth call, whether the variance term is far larger than the differences between the logits."""

    def __init__(self, lambda_0: float) -> None:
        self._lambda_0, self._calls = lambda_0, 0

    def look(self, variance: Tensor, logits: Tensor, strength: float) -> None:
        """Warn if strength/2 * variance (N, C) is on average ten times what the logits (N, C) of a sample vary by."""
        self._calls += 1
        if self._calls % _EVERY != 1 or strength == 0:
            return
        added = float(strength / 2 * variance.detach().mean())
        spread = float(logits.detach().std(1, correction=0).mean())
        if added > _RATIO * spread:
            warnings.warn(
                f"the variance term averages {added:.3g} where the logits of a sample vary by {spread:.3g}: at "
                f"strength {strength:.3g} it swamps them; lower lambda_0 (now {self._lambda_0:g})",
                UserWarning,
                stacklevel=_CALLER + 1,
            )


def warn_of_eval_mode() -> None:
    """Say that an attached classifier which gets gradients is in eval mode."""
    warnings.warn(
        "the classifier is in eval mode, so this is plain cross-entropy and the statistics stay as they are; "
        "validate under torch.no_grad(), or train with the classifier in training mode",
        UserWarning,
        stacklevel=_CALLER,
    )
