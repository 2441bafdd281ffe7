"""Warnings that name the line of the user's script, however deep inside isda and torch they are found."""

from __future__ import annotations

from isda.checks import warn

__all__ = ["warn", "warn_of_eval_mode"]


def warn_of_eval_mode() -> None:
    """Say that an attached classifier which gets gradients is in eval mode."""
    warn(
        "the classifier is in eval mode, so this is plain cross-entropy and the statistics stay as they are; "
        "validate under torch.no_grad(), or train with the classifier in training mode"
    )
