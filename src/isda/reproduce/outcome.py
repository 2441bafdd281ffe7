"""What became of a training: its finished runs, what was chosen for them, and what went wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from isda.engine.folder.reading import RunRecord, read_run
from isda.reproduce.training import Training

__all__ = ["Outcome"]


@dataclass(frozen=True)
class Outcome:
    """The result of a training at a scale."""

    training: Training
    folders: dict[int, Path] = field(default_factory=dict)
    """Finished runs by seed."""
    differences: tuple[str, ...] = ()
    """From the paper, beside the scale."""
    chosen: str = ""
    """The method with the settings that were chosen; empty where nothing was."""
    notes: tuple[str, ...] = ()
    """Where a choice is at the edge of what was tried."""
    problems: tuple[str, ...] = ()
    """Why runs are missing."""

    @cached_property
    def runs(self) -> dict[int, RunRecord]:
        """The finished runs, read."""
        return {seed: read_run(folder) for seed, folder in self.folders.items()}

    def values(self, figure: str) -> dict[int, float]:
        """A figure of the runs that have it, by seed."""
        found = {seed: run.result for seed, run in self.runs.items() if run.result is not None}
        return {seed: float(result[figure]) for seed, result in found.items() if result.get(figure) is not None}
