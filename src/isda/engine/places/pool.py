"""What a place owes `run_planned`: a pool that makes runs, most often by workers, each one run after the other."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path

from isda.engine.folder.run_folder import RunFolder
from isda.engine.planned import Planned, Problem, Watcher

__all__ = ["HandedOver", "Pool", "WorkerDied", "Workers"]

# How often to look how far the runs have come, in seconds.
LOOK_EVERY = 0.5
# How often a run whose worker has died is given to another one.
RETRIES = 3


class HandedOver(Exception):
    """The runs were not made: they are left to somebody else, and the message says how that goes on."""


class WorkerDied(Exception):
    """The process or machine that made a run is no more; the run can go on elsewhere."""


class Pool(ABC):
    """Makes runs."""

    def check_rounds(self) -> None:  # noqa: B027, most pools can
        """Raise a ValueError if runs are not made when `make` returns: runs that follow from earlier ones need that."""

    @abstractmethod
    def make(self, planned: Sequence[Planned], watcher: Watcher) -> dict[Path, Problem]:
        """Make every run that is not finished; what went wrong, by run folder.

        Raises:
            HandedOver: somebody else will make them.
        """


class _EpochCounter:
    """Counts the epochs of runs by the lines of their metrics; each look reads only what was added since the last."""

    def __init__(self) -> None:
        self._seen: dict[Path, tuple[int, int]] = {}
        """By run folder: bytes that were read, and lines in them."""

    def count(self, folder: Path) -> int:
        """Epochs that a run has recorded; 0 before the first, or where its file cannot be read now."""
        position, lines = self._seen.get(folder, (0, 0))
        try:
            with RunFolder(folder).metrics_file.open("rb") as file:
                if file.seek(0, os.SEEK_END) < position:
                    position = lines = 0  # written anew, by a run that was taken up from an earlier epoch
                file.seek(position)
                added = file.read()
        except OSError:
            return 0
        # A line may be half written.
        whole = added.rfind(b"\n") + 1
        self._seen[folder] = (position + whole, lines + added.count(b"\n"))
        return self._seen[folder][1]


class Workers(Pool):
    """Gives one run after the other to workers that are free."""

    jobs: int | None = None
    """Runs at the same time; None leaves it to the place."""

    @abstractmethod
    def submit(self, one: Planned) -> Future[Problem | None]:
        """Have a run made; the future may raise `WorkerDied`, and the run is given to another worker."""

    def make(self, planned: Sequence[Planned], watcher: Watcher) -> dict[Path, Problem]:
        """Make every run that is not finished; what went wrong, by run folder."""
        watcher.start(sum(one.config.epochs for one in planned), len(planned))
        problems: dict[Path, Problem] = {}
        waiting, running = list[Planned](), dict[Future[Problem | None], Planned]()
        deaths: Counter[Path] = Counter()
        finished_epochs = finished_runs = 0
        epochs = _EpochCounter()
        for one in planned:
            if RunFolder(one.folder).finished:
                watcher.run_finished(one.folder, None)
                finished_epochs, finished_runs = finished_epochs + one.config.epochs, finished_runs + 1
            else:
                waiting.append(one)
        while waiting or running:
            while waiting and (self.jobs is None or len(running) < self.jobs):
                one = waiting.pop(0)
                running[self.submit(one)] = one
            done, _ = wait(running, timeout=LOOK_EVERY, return_when=FIRST_COMPLETED)
            for future in done:
                one = running.pop(future)
                try:
                    problem = future.result()
                except WorkerDied:
                    deaths[one.folder] += 1
                    if deaths[one.folder] <= RETRIES:
                        waiting.insert(0, one)
                        continue
                    problem = Problem(f"its worker died, {deaths[one.folder]} times; the same command goes on")
                if problem:
                    problems[one.folder] = problem
                watcher.run_finished(one.folder, problem.sentence if problem else None)
                finished_epochs, finished_runs = finished_epochs + one.config.epochs, finished_runs + 1
            under_way = sum(epochs.count(one.folder) for one in running.values())
            watcher.progress(finished_epochs + under_way, finished_runs)
        return problems
