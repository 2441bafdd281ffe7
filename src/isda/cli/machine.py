"""Where and how a command runs: data folder, threads, checkpoints. None of it is a setting of what is learnt."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from isda.engine.saving import Saving

__all__ = ["Machine"]

MOST_THREADS = 1024


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Options that the training commands share."""

    data_root: Path | None = None
    """The folder of data sets; by default the environment's ISDA_DATA, else ./data."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:1."""
    workers: int | None = None
    """Threads that decode and augment images ahead, where they are files; 4 if left out."""
    threads: int | None = None
    """CPU threads; torch's choice by default."""
    checkpoint_minutes: float = 5.0
    """Write a checkpoint when this much time has passed since the last."""
    checkpoint_steps: int | None = None
    """Write a checkpoint every so many steps as well."""
    keep: int = 2
    """How many checkpoints to keep."""

    def saving(self) -> Saving:
        """When to write checkpoints."""
        from isda.engine.saving import Saving

        return Saving(self.checkpoint_minutes, self.checkpoint_steps, self.keep)

    def use_threads(self) -> None:
        """Set torch's threads, if the user has a wish."""
        import torch

        for name in ("workers", "threads"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= MOST_THREADS:
                raise ValueError(f"{name} must be from 1 to {MOST_THREADS}, got {value}")
        if self.threads is not None:
            torch.set_num_threads(self.threads)
