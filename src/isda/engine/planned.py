"""Runs to be made: what each is, how it may fail, and who is told how far things have come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from isda.engine.folder.config import RunConfig
from isda.engine.saving import Saving
from isda.engine.task import Task
from isda.errors import INTERNAL

__all__ = ["Planned", "Problem", "RunsFailed", "Watcher"]


class Problem(NamedTuple):
    """Why a run did not come to its end."""

    sentence: str
    diverged: bool = False
    """Whether its loss became infinite or not a number: it would do so again."""


class RunsFailed(ValueError):
    """Some of several runs failed; the others are done.

    Args:
        problems: by run folder.
        runs: how many there were.
    """

    def __init__(self, problems: Mapping[Path, Problem], runs: int) -> None:
        told = "; ".join(f"{folder}: {problem.sentence}" for folder, problem in problems.items())
        internal = INTERNAL if any(problem.sentence.startswith(INTERNAL) for problem in problems.values()) else ""
        super().__init__(f"{internal}{len(problems)} of {runs} runs failed: {told}")
        self.problems = problems


class Watcher:
    """Told how far a comparison has come; the base class keeps quiet."""

    def start(self, total_epochs: int, runs: int) -> None:
        """Before the first run."""

    def progress(self, epochs: int, finished: int) -> None:
        """Epochs and runs that are done so far."""

    def run_finished(self, folder: Path, problem: str | None) -> None:
        """A run has ended, with a sentence if it did not end well."""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A run to be made."""

    task: type[Task]
    config: RunConfig
    folder: Path
    data: str | None
    """As the user names it; the configuration has the name of what was found."""
    data_root: Path | None = None
    device: str = "auto"
    saving: Saving = field(default_factory=Saving)
    workers: int | None = None
    """Threads that prepare batches ahead."""
