"""Hooks: where other loggers, early stopping or a notebook's live plot join a run.

Subclass `Hook`, override what you need, and pass it: ``train(config, data, folder, hooks=[MyHook()])``, or on the
command line ``isda train --hook package.module:MyHook``. Hooks run in the first process only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isda.engine.folder.config import RunConfig
from isda.engine.naming import load_named

__all__ = ["Hook", "load_hook"]


class Hook:
    """Called as a run goes on; each method may be left as it is.

    Example:
        >>> class Loud(Hook):
        ...     def epoch(self, metrics):
        ...         print(f"epoch {metrics['epoch']}: {metrics['test/error']:.1f}% error")
        >>> Loud().epoch({"epoch": 3, "test/error": 12.34})
        epoch 3: 12.3% error
    """

    def start(self, config: RunConfig, folder: Path, step: int) -> None:
        """Before the first step, which follows ``step`` finished ones (0 unless the run is resumed)."""

    def step(self, step: int) -> None:
        """After each optimiser step, counted from 1."""

    def epoch(self, metrics: dict[str, Any]) -> None:
        """After each epoch, with the line that was written to metrics.jsonl."""

    def finish(self, result: dict[str, Any]) -> None:
        """At the end of a run that came to its end, with the content of result.json."""

    def close(self) -> None:
        """Last of all, also after an error."""


def load_hook(name: str) -> Hook:
    """The hook that ``package.module:Class`` names, made without arguments."""
    kind = load_named(name, Hook, "hook")
    try:
        return kind()
    except (TypeError, ValueError) as error:
        raise ValueError(f"hook {name!r} could not be made: {error}") from error
