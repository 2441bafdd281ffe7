"""Callbacks of a run: the `Hook` base class and TensorBoard logging.

Pass hooks with ``train(..., hooks=[MyHook()])`` or ``isda train --hook package.module:MyHook``. They run on rank 0.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isda.lab.engine.config import RunConfig
from isda.lab.engine.options import import_class

__all__ = ["Hook", "TensorBoard", "load_hook"]


class Hook:
    """Called during a run, in the first process; the methods of this base class do nothing.

    Example:
        >>> class Loud(Hook):
        ...     def epoch(self, metrics):
        ...         print(f"epoch {metrics['epoch']}: {metrics['test/error']:.1f}% error")
        >>> Loud().epoch({"epoch": 3, "test/error": 12.34})
        epoch 3: 12.3% error
    """

    def start(self, config: RunConfig, folder: Path, step: int) -> None:
        """Before the first step, after ``step`` finished ones (0 unless the run is resumed)."""

    def step(self, step: int) -> None:
        """After each optimiser step, counted from 1."""

    def epoch(self, metrics: dict[str, Any]) -> None:
        """After each epoch, with the line of metrics.jsonl."""

    def finish(self, result: dict[str, Any]) -> None:
        """After a finished run, with the content of result.json."""

    def close(self) -> None:
        """At the end, also after an error."""


def load_hook(name: str) -> Hook:
    """Import and construct the hook ``package.module:Class``."""
    kind = import_class(name, Hook, "hook")
    try:
        return kind()
    except (TypeError, ValueError) as error:
        raise ValueError(f"hook {name!r} could not be constructed: {error}") from error


class TensorBoard(Hook):
    """Writes the metrics of each epoch to TensorBoard; a resumed run hides the events that it repeats."""

    def start(self, config: RunConfig, folder: Path, step: int) -> None:
        """Open the event file."""
        # Importing tensorboard takes longer than a small run's first epoch.
        from torch.utils.tensorboard import SummaryWriter

        self.writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def epoch(self, metrics: dict[str, Any]) -> None:
        """Write one point per number."""
        for name, value in metrics.items():
            if name not in ("epoch", "step"):
                self.writer.add_scalar(name, value, metrics["step"])
        self.writer.flush()

    def close(self) -> None:
        """Close the event file."""
        if hasattr(self, "writer"):
            self.writer.close()
