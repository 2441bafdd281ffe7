"""What a study is: methods to be trained alike, each with a name for readers and a place in the picture."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from isda.engine.grammar import canonical, split_method

__all__ = ["Cell", "Study", "plain", "with_options"]

SUFFIX = "+isda"


@dataclass(frozen=True)
class Cell:
    """One method of a study."""

    label: str
    """As tables call it."""
    method: str
    """As `isda train --method` takes it."""
    series: str | None = None
    """The line that it belongs to; None for what all lines begin from."""
    x: float | None = None
    """Its place on the axis."""


class Study(ABC):
    """Which methods to compare."""

    title: ClassVar[str]
    axis: ClassVar[str | None] = None
    """What the axis shows; None for a study without one."""
    methods: ClassVar[tuple[str, ...]] = ("isda",)
    """What is studied unless the user says otherwise."""
    values: ClassVar[tuple[float, ...]] = ()
    """Along the axis unless the user says otherwise."""

    @classmethod
    @abstractmethod
    def cells(cls, methods: Sequence[str], values: Sequence[float]) -> list[Cell]:
        """The methods to train, the baseline first.

        Args:
            methods: that are studied, as in `isda train --method`.
            values: along the axis.
        """


def plain(method: str) -> str:
    """The method without ISDA.

    Example:
        >>> plain("isda:lambda_0=2"), plain("vat+isda:eta_1=2")
        ('cross-entropy', 'vat')
    """
    name, _ = split_method(method)
    return name.removesuffix(SUFFIX) if name.endswith(SUFFIX) else "cross-entropy"


def with_options(method: str, **options: object) -> str:
    """The method with further options behind its colon, in place of those that it has by the same names.

    Example:
        >>> with_options("isda:lambda_0=2", covariance="diagonal"), with_options("isda:lambda_0=2", lambda_0=1)
        ('isda:lambda_0=2,covariance=diagonal', 'isda:lambda_0=1')
    """
    name, words = split_method(method)
    kept = [word for word in words.split(",") if word and word.partition("=")[0] not in options]
    said = [
        *kept,
        *(f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}" for key, value in options.items()),
    ]
    return canonical(f"{name}:{','.join(said)}" if said else name)
