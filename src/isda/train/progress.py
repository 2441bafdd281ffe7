"""What a run shows while it goes on: a bar with the time left on a terminal, one line per epoch elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from isda.train.config import Config
from isda.train.hooks import Hook

__all__ = ["EpochLines", "ProgressBar", "describe_epoch", "progress_for"]


def describe_epoch(metrics: dict[str, Any], epochs: int) -> str:
    """One line about an epoch."""
    parts = [f"epoch {metrics['epoch']}/{epochs}", f"train loss {metrics['train/loss']:.4f}"]
    if "strength" in metrics:
        parts.append(f"strength {metrics['strength']:.3f}")
    if "test/error" in metrics:
        parts.append(f"error {metrics['test/error']:.2f}%")
    parts.append(f"{metrics['seconds']:.1f} s")
    return ", ".join(parts)


class EpochLines(Hook):
    """For logs and pipes."""

    def start(self, config: Config, folder: Path, step: int) -> None:
        """Say what is trained."""
        self.epochs = config.epochs
        print(f"{describe_run(config)} in {folder}", flush=True)
        if step:
            print(f"resumed after step {step} of {config.total_steps}", flush=True)

    def epoch(self, metrics: dict[str, Any]) -> None:
        """Print the line."""
        print(describe_epoch(metrics, self.epochs), flush=True)


class ProgressBar(Hook):
    """For a terminal."""

    def start(self, config: Config, folder: Path, step: int) -> None:
        """Show the bar."""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.epochs = config.epochs
        self.bar = Progress(*columns, console=Console(stderr=True))
        self.bar.console.print(f"{describe_run(config)} in {folder}", highlight=False, markup=False)
        self.task: TaskID = self.bar.add_task("epoch 1", total=config.total_steps, completed=step)
        self.bar.start()

    def step(self, step: int) -> None:
        """Move the bar."""
        self.bar.update(self.task, completed=step)

    def epoch(self, metrics: dict[str, Any]) -> None:
        """Show the last epoch beside the bar."""
        self.bar.update(self.task, description=describe_epoch(metrics, self.epochs))

    def close(self) -> None:
        """Leave the bar as it is."""
        if hasattr(self, "bar"):
            self.bar.stop()


def describe_run(config: Config) -> str:
    """One line about a run."""
    images = f"{config.train_images} images"
    if config.unlabelled is not None:
        images = f"{config.labels} labelled and {config.unlabelled} unlabelled images"
    return (
        f"{config.method} on {config.data}, {config.network}, {images}, {config.epochs} epochs "
        f"({config.scale} scale), seed {config.seed}"
    )


def progress_for(terminal: bool) -> Hook:
    """What suits the place where standard error goes."""
    return ProgressBar() if terminal else EpochLines()
