"""What a run shows while it goes on: a bar with the time left on a terminal, one line per epoch elsewhere."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from isda.engine.folder.config import RunConfig
from isda.engine.watching.hooks import Hook
from isda.plain_text import harmless

__all__ = ["EpochLines", "ProgressBar", "describe_epoch", "progress_for"]


def describe_epoch(metrics: dict[str, Any], config: RunConfig) -> str:
    """One line about an epoch: the training loss, ISDA's strength, the figure that counts, and the time."""
    figure = config.figures[0]
    parts = [f"epoch {metrics['epoch']}/{config.epochs}"]
    for metric, title, digits, unit in (
        ("train/loss", "train loss", 4, ""),
        ("strength", "strength", 3, ""),
        (figure.metric, figure.title, figure.digits, figure.unit),
    ):
        if metric in metrics:
            parts.append(f"{title} {metrics[metric]:.{digits}f}{unit if unit == '%' else ''}")
    return ", ".join([*parts, f"{metrics['seconds']:.1f} s"])


class EpochLines(Hook):
    """For logs and pipes. Training goes on when nobody reads any more."""

    quiet = False

    def say(self, line: str) -> None:
        """Print a line, unless the reader has gone."""
        if self.quiet:
            return
        try:
            print(harmless(line), flush=True)
        except (BrokenPipeError, ValueError):  # ValueError: the stream is closed
            self.quiet = True
            # What is still buffered must not fail again when the process ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def start(self, config: RunConfig, folder: Path, step: int) -> None:
        """Say what is trained."""
        self.config = config
        self.say(f"{config.describe()} in {folder}")
        if step:
            self.say(f"resumed after step {step} of {config.total_steps}")

    def epoch(self, metrics: dict[str, Any]) -> None:
        """Print the line."""
        self.say(describe_epoch(metrics, self.config))


class ProgressBar(Hook):
    """For a terminal."""

    def start(self, config: RunConfig, folder: Path, step: int) -> None:
        """Show the bar."""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.config = config
        self.bar = Progress(*columns, console=Console(stderr=True))
        self.bar.console.print(harmless(f"{config.describe()} in {folder}"), highlight=False, markup=False)
        self.task: TaskID = self.bar.add_task("epoch 1", total=config.total_steps, completed=step)
        self.bar.start()

    def step(self, step: int) -> None:
        """Move the bar."""
        self.bar.update(self.task, completed=step)

    def epoch(self, metrics: dict[str, Any]) -> None:
        """Show the last epoch beside the bar."""
        self.bar.update(self.task, description=describe_epoch(metrics, self.config))

    def close(self) -> None:
        """Leave the bar as it is."""
        if hasattr(self, "bar"):
            self.bar.stop()


def progress_for(terminal: bool) -> Hook:
    """What suits the place where standard error goes."""
    return ProgressBar() if terminal else EpochLines()
