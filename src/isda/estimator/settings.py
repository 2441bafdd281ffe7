"""What ISDAClassifier may be told, checked before anything is computed."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from isda.choices import check_choice
from isda.estimator.folds import check_folds
from isda.estimator.offsets import check_offset
from isda.estimator.statistics import COVARIANCES

__all__ = ["BOUNDS", "check_settings"]

BOUNDS = ("jensen", "tilted")
MOST_STRENGTH = 1e9
LEAST_C, MOST_C = 1e-12, 1e12
"""Beyond these the other part of the objective is lost in rounding; what "auto" searches lies far inside."""
LEAST_SCALE, MOST_SCALE = 1e-30, 1e30


def check_settings(model: Any) -> None:
    """Raise ValueError for the first setting that is not what it must be."""
    _number_or_auto("lambda_0", model.lambda_0, at_least=0, at_most=MOST_STRENGTH)
    _number_or_auto("C", model.C, at_least=LEAST_C, at_most=MOST_C)
    _number_or_auto("scale", model.scale, at_least=LEAST_SCALE, at_most=MOST_SCALE)
    check_choice("covariance", model.covariance, COVARIANCES)
    check_choice("bound", model.bound, BOUNDS)
    check_offset(model.offset)
    check_folds(model.cv)
    _number("tol", model.tol, above=0)
    _number("consistency", model.consistency, at_least=0)
    _number("learning_rate", model.learning_rate, above=0)
    _number("validation_fraction", model.validation_fraction, at_least=0, below=1)
    for name in ("max_iter", "epochs", "patience", "batch_size"):
        _count(name, getattr(model, name))
    if isinstance(model.hidden, str) or not hasattr(model.hidden, "__iter__"):
        raise ValueError(f"hidden must be a tuple of widths, got {model.hidden!r}")
    for width in model.hidden:
        _count("every width in hidden", width)


def _number_or_auto(name: str, value: Any, **limits: float) -> None:
    if isinstance(value, str):
        if value != "auto":
            raise ValueError(f"{name} must be a number or 'auto', got {value!r}")
        return
    _number(name, value, **limits)


def _number(
    name: str,
    value: Any,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float = math.inf,
) -> None:
    # Compared as it is: an integer may be larger than any float.
    good = not isinstance(value, bool) and isinstance(value, Real) and value < below
    good = good and (at_least is None or value >= at_least) and (above is None or value > above)
    good = good and (at_most is None or value <= at_most)
    if not good:
        limit = f">= {at_least:g}" if at_least is not None else f"> {above:g}"
        limit += "" if at_most is None else f" and <= {at_most:g}"
        limit += "" if below == math.inf else f" and < {below:g}"
        raise ValueError(f"{name} must be a finite number {limit}, got {value!r}")


def _count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < 1:
        raise ValueError(f"{name} must be a positive integer, got {value!r}")
