"""Checks of options: one of several names, with a suggestion for misspelt ones; a number in a range; a type."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import TypeVar

_Kind = TypeVar("_Kind")


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


def positive_integer(name: str, value: object) -> int:
    """Return ``value`` if it is an integer from 1 to 10^9.

    Example:
        >>> positive_integer("num_classes", 10)
        10
    """
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 10**9:
        raise ValueError(f"{name} must be an integer from 1 to 10^9, got {value!r}")
    return value


def check_number(name: str, value: float, high: float = float("inf")) -> float:
    """A finite number from 0 to ``high``, as a float.

    Example:
        >>> check_number("rate", 2, high=1.0)
        Traceback (most recent call last):
        ValueError: rate must be a number in 0..1, got 2
    """
    if not (0 <= value <= high and value < float("inf")):
        expected = "a finite number >= 0" if high == float("inf") else f"a number in 0..{high:g}"
        raise ValueError(f"{name} must be {expected}, got {value!r}")
    return float(value)


def expect_type(value: object, kind: type[_Kind]) -> _Kind:
    """The value, which must be of this type; for type checkers.

    Example:
        >>> expect_type(None, int)
        Traceback (most recent call last):
        TypeError: expected int, got NoneType
    """
    if not isinstance(value, kind):
        raise TypeError(f"expected {kind.__name__}, got {type(value).__name__}")
    return value
