"""Warnings that name the line of the user's script, however deep inside isda and torch they are found."""

from __future__ import annotations

import sys
import warnings

__all__ = ["warn", "warn_of_eval_mode"]

_OWN = ("isda.", "torch.")


def warn(message: str) -> None:
    """Warn, naming the innermost line outside isda and torch."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and f"{frame.f_globals.get('__name__', '')}.".startswith(_OWN):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, UserWarning, stacklevel=level)


def warn_of_eval_mode() -> None:
    """Say that an attached classifier which gets gradients is in eval mode."""
    warn(
        "the classifier is in eval mode, so this is plain cross-entropy and the statistics stay as they are; "
        "validate under torch.no_grad(), or train with the classifier in training mode"
    )
