"""TensorBoard events of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isda.engine.folder.config import RunConfig
from isda.engine.watching.hooks import Hook

__all__ = ["TensorBoard"]


class TensorBoard(Hook):
    """Writes every number of an epoch's metrics; a resumed run hides the events that it writes again."""

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
