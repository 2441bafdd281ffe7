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

from isda.lab.engine.callbacks import Hook
from isda.lab.engine.config import RunConfig
from isda.lab.engine.executors.runs import Watcher
from isda.lab.engine.run_records import read_run
from isda.lab.text import escape_control_characters


def progress_bar(disable: bool = False) -> Progress:
    """A progress bar on the standard error: description, bar, count and remaining time."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), disable=disable)


def describe_epoch(metrics: dict[str, Any], config: RunConfig) -> str:
    """One line about an epoch: training loss, strength of the method, the headline figure and the time."""
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
    """Prints a line per epoch, for logs and pipes. Training continues after the reader has closed a pipe."""

    quiet = False

    def print_line(self, line: str) -> None:
        """Print a line, unless the output is closed."""
        if self.quiet:
            return
        try:
            print(escape_control_characters(line), flush=True)
        except (BrokenPipeError, ValueError):  # ValueError: the stream is closed
            self.quiet = True
            # Buffered output must not fail again when the process ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def start(self, config: RunConfig, folder: Path, step: int) -> None:
        """Print the run and its folder."""
        self.config = config
        self.print_line(f"{config.describe()} in {folder}")
        if step:
            self.print_line(f"resumed after step {step} of {config.total_steps}")

    def epoch(self, metrics: dict[str, Any]) -> None:
        """Print the line."""
        self.print_line(describe_epoch(metrics, self.config))


class ProgressBar(Hook):
    """Shows a progress bar on a terminal."""

    def start(self, config: RunConfig, folder: Path, step: int) -> None:
        """Show the bar."""
        self.config = config
        self.bar = progress_bar()
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
    """A bar for a terminal, else lines."""
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
    """Shows rounds of runs, each planned after the one before, as one growing set of runs.

    Args:
        watcher: shows the progress.
    """

    def __init__(self, watcher: Watcher) -> None:
        self.watcher = watcher
        self.before = self.total = (0, 0)
        """Epochs and runs of the earlier rounds, and of all."""

    def start(self, total_epochs: int, runs: int) -> None:
        """Add a round."""
        self.before = self.total
        self.total = self.before[0] + total_epochs, self.before[1] + runs
        self.watcher.start(*self.total)

    def progress(self, epochs: int, finished: int) -> None:
        """Add the progress of this round to the earlier ones."""
        self.watcher.progress(self.before[0] + epochs, self.before[1] + finished)

    def run_finished(self, folder: Path, problem: str | None) -> None:
        """Pass on."""
        self.watcher.run_finished(folder, problem)


def _outcome(folder: Path, problem: str | None) -> str:
    if problem:
        return escape_control_characters(f"{folder} failed: {problem}")
    run = read_run(folder)
    figure, unit = run.headline, "%" if run.headline.unit == "%" else ""
    return escape_control_characters(f"{folder} {figure.title} {run.value:.{figure.digits}f}{unit}")


@contextmanager
def make_watcher(terminal: bool) -> Iterator[Watcher]:
    """A bar for a terminal, else lines."""
    if not terminal:
        yield _Lines()
        return
    with progress_bar() as bar:
        yield _Bar(bar)
