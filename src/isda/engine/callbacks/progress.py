"""Progress of a run and of many runs: bars on a terminal, lines elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from isda._utils.text import escape_control_characters
from isda.engine.callbacks import Hook
from isda.engine.config import RunConfig
from isda.engine.executors import Watcher
from isda.engine.run_records import read_run


def describe_epoch(metrics: dict[str, Any], config: RunConfig) -> str:
    """One line about an epoch: the training loss, the method's strength, the figure that counts, and the time."""
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
            print(escape_control_characters(line), flush=True)
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
        self.bar.console.print(
            escape_control_characters(f"{config.describe()} in {folder}"), highlight=False, markup=False
        )
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


def make_progress(terminal: bool) -> Hook:
    """What suits the place where standard error goes."""
    return ProgressBar() if terminal else EpochLines()


class _Lines(Watcher):
    def __init__(self) -> None:
        self.ended = self.runs = 0

    def start(self, total_epochs: int, runs: int) -> None:
        self.runs = runs

    def run_finished(self, folder: Path, problem: str | None) -> None:
        self.ended += 1
        print(f"run {self.ended}/{self.runs}: {_outcome(folder, problem)}", file=sys.stderr, flush=True)


class _Bar(Watcher):
    def __init__(self, bar: Progress) -> None:
        self.bar, self.task, self.runs = bar, bar.add_task("training", total=None), 0

    def start(self, total_epochs: int, runs: int) -> None:
        self.runs = runs
        self.bar.update(self.task, total=total_epochs)

    def progress(self, epochs: int, finished: int) -> None:
        self.bar.update(self.task, completed=epochs, description=f"{finished} of {self.runs} runs, epoch")

    def run_finished(self, folder: Path, problem: str | None) -> None:
        if problem:
            self.bar.console.print(_outcome(folder, problem), highlight=False, markup=False)


class RoundsWatcher(Watcher):
    """Shows rounds of runs, each planned when the one before is done, as one that grows.

    Args:
        shown: what shows it.
    """

    def __init__(self, shown: Watcher) -> None:
        self.shown = shown
        self.before = self.so_far = (0, 0)

    def start(self, total_epochs: int, runs: int) -> None:
        """A round more."""
        self.before, (epochs, ended) = self.so_far, self.so_far
        self.so_far = epochs + total_epochs, ended + runs
        self.shown.start(*self.so_far)

    def progress(self, epochs: int, finished: int) -> None:
        """Of this round."""
        self.shown.progress(self.before[0] + epochs, self.before[1] + finished)

    def run_finished(self, folder: Path, problem: str | None) -> None:
        """As it is."""
        self.shown.run_finished(folder, problem)


def _outcome(folder: Path, problem: str | None) -> str:
    if problem:
        return escape_control_characters(f"{folder} failed: {problem}")
    run = read_run(folder)
    figure, unit = run.headline, "%" if run.headline.unit == "%" else ""
    return escape_control_characters(f"{folder} {figure.title} {run.value:.{figure.digits}f}{unit}")


@contextmanager
def make_watcher(terminal: bool) -> Iterator[Watcher]:
    """The watcher that suits the place where standard error goes."""
    if not terminal:
        yield _Lines()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        yield _Bar(bar)
