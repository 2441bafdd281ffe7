"""Validation of options that take one of several names, with a suggestion for misspelt ones."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of an error message about a word that is not known: the nearest known word, or nothing.

    Example:
        >>> "unknown network 'resnet110'" + did_you_mean("resnet110", ["resnet-110", "cnn-13"])
        "unknown network 'resnet110'; did you mean 'resnet-110'?"
    """
    nearest = get_close_matches(word, list(known), n=1)
    return f"; did you mean {nearest[0]!r}?" if nearest else ""


def check_choice(name: str, value: str, choices: Iterable[str]) -> str:
    """Return ``value`` if it is one of ``choices``; otherwise raise ValueError and suggest the nearest.

    Example:
        >>> check_choice("bound", "tilted", ("jensen", "tilted"))
        'tilted'
    """
    known = tuple(choices)
    if value in known:
        return value
    raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}{did_you_mean(str(value), known)}")


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Raise a ValueError unless ``low <= value <= high``.

    Example:
        >>> check_range("seeds", 0, 1, 1000)
        Traceback (most recent call last):
        ValueError: seeds must be from 1 to 1000, got 0
    """
    if not low <= value <= high:
        raise ValueError(f"{name} must be from {low} to {high}, got {value}")
