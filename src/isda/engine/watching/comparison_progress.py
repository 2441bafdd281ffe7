"""What a comparison shows while it goes on: a bar with the time left on a terminal, one line per run elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from isda.engine.folder.reading import read_run
from isda.engine.planned import Watcher
from isda.plain_text import harmless

__all__ = ["Rounds", "watcher_for"]


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


class Rounds(Watcher):
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
        return harmless(f"{folder} failed: {problem}")
    run = read_run(folder)
    figure, unit = run.headline, "%" if run.headline.unit == "%" else ""
    return harmless(f"{folder} {figure.title} {run.value:.{figure.digits}f}{unit}")


@contextmanager
def watcher_for(terminal: bool) -> Iterator[Watcher]:
    """The watcher that suits the place where standard error goes."""
    if not terminal:
        yield _Lines()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        yield _Bar(bar)
