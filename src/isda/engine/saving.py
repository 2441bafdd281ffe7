"""When checkpoints are written, and what they are made from."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from isda.engine.folder.checkpoint import Checkpoint
from isda.engine.folder.run_folder import RunFolder
from isda.engine.interruptions import Stopped
from isda.engine.task import Job

__all__ = ["Saver", "Saving"]

# How many steps processes go on before they ask each other whether to save or stop: asking makes a GPU wait.
AGREE_EVERY = 16


@dataclass(frozen=True)
class Saving:
    """When checkpoints are written, and how many are kept."""

    minutes: float = 5.0
    """Save when this much time has passed since the last checkpoint."""
    steps: int | None = None
    """Save every so many steps as well."""
    keep: int = 2

    def __post_init__(self) -> None:
        if not self.minutes > 0:
            raise ValueError(f"minutes between checkpoints must be more than 0, got {self.minutes}")
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"steps between checkpoints must be at least 1, got {self.steps}")


class Saver:
    """Decides after each step whether to save and whether to stop."""

    def __init__(self, run: RunFolder, job: Job, saving: Saving) -> None:
        self.run, self.job, self.saving = run, job, saving
        self.last = time.monotonic()

    def after_step(self, step: int, metrics: list[dict[str, Any]], stop: str | None) -> None:
        """Save if it is time; raise Stopped if a signal came and there are steps left.

        Args:
            step: how many are done.
            metrics: the figures of the epochs until then.
            stop: the name of the signal, if one came.
        """
        processes, total = self.job.processes, self.job.config.total_steps
        due, stopping = self._elapsed(), stop is not None
        if processes.world > 1:
            due, stopping = processes.any(due, stopping) if step % AGREE_EVERY == 0 or step == total else (False, False)
        counted = self.saving.steps is not None and step % self.saving.steps == 0
        if due or stopping or counted:
            self.save(step, metrics)
        if stopping and step < total:
            name = stop or "SIGTERM"
            raise Stopped(f"stopped by {stop or 'a signal'} after step {step} of {total}, which is saved", name)

    def save(self, step: int, metrics: list[dict[str, Any]]) -> None:
        """Write a checkpoint: the first process does, and the others wait for it."""
        self.job.check()
        state = self.job.state()
        if self.job.processes.first:
            self.run.checkpoints.save(Checkpoint(step, state, metrics, self.job.config.identity))
        self.job.processes.wait()
        self.last = time.monotonic()

    def last_good(self) -> str:
        """Where one could go on from."""
        latest = self.run.checkpoints.latest_step()
        return "there is no checkpoint from before it" if latest is None else f"the checkpoint of step {latest} is kept"

    def _elapsed(self) -> bool:
        return time.monotonic() - self.last > 60 * self.saving.minutes
