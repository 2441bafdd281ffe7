"""Executor interface used by `run_planned`: planned runs, executor options, worker pools.

Executors are the modules local, ray and slurm of this package; each has ``open_executor`` and ACCEPTED_OPTIONS.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from isda._utils.choices import check_choice
from isda._utils.errors import INTERNAL
from isda.engine.config import RunConfig
from isda.engine.loop import Saving
from isda.engine.run_folder import RunFolder
from isda.engine.task import Task

__all__ = [
    "EXECUTORS",
    "FORWARDED_VARIABLES",
    "Executor",
    "ExecutorOptions",
    "ExecutorRequest",
    "PlannedRun",
    "RunProblem",
    "RunsDeferred",
    "RunsFailed",
    "Watcher",
    "WorkerDied",
    "WorkerExecutor",
    "open_executor",
]


class RunProblem(NamedTuple):
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

    def __init__(self, problems: Mapping[Path, RunProblem], runs: int) -> None:
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
class PlannedRun:
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


# How often to look how far the runs have come, in seconds.
POLL_SECONDS = 0.5
# How often a run whose worker has died is given to another one.
MAX_RETRIES = 3


class RunsDeferred(Exception):
    """The runs were not made: they are left to somebody else, and the message says how that goes on."""


class WorkerDied(Exception):
    """The process or machine that made a run is no more; the run can go on elsewhere."""


class Executor(ABC):
    """Makes runs."""

    def check_rounds(self) -> None:  # noqa: B027, most pools can
        """Raise a ValueError if runs are not made when `make` returns: runs that follow from earlier ones need that."""

    @abstractmethod
    def make(self, planned: Sequence[PlannedRun], watcher: Watcher) -> dict[Path, RunProblem]:
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


class WorkerExecutor(Executor):
    """Gives one run after the other to workers that are free."""

    jobs: int | None = None
    """Runs at the same time; None leaves it to the place."""

    @abstractmethod
    def submit(self, one: PlannedRun) -> Future[RunProblem | None]:
        """Have a run made; the future may raise `WorkerDied`, and the run is given to another worker."""

    def make(self, planned: Sequence[PlannedRun], watcher: Watcher) -> dict[Path, RunProblem]:
        """Make every run that is not finished; what went wrong, by run folder."""
        watcher.start(sum(one.config.epochs for one in planned), len(planned))
        problems: dict[Path, RunProblem] = {}
        waiting, running = list[PlannedRun](), dict[Future[RunProblem | None], PlannedRun]()
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
            done, _ = wait(running, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
            for future in done:
                one = running.pop(future)
                try:
                    problem = future.result()
                except WorkerDied:
                    deaths[one.folder] += 1
                    if deaths[one.folder] <= MAX_RETRIES:
                        waiting.insert(0, one)
                        continue
                    problem = RunProblem(f"its worker died, {deaths[one.folder]} times; the same command goes on")
                if problem:
                    problems[one.folder] = problem
                watcher.run_finished(one.folder, problem.sentence if problem else None)
                finished_epochs, finished_runs = finished_epochs + one.config.epochs, finished_runs + 1
            under_way = sum(epochs.count(one.folder) for one in running.values())
            watcher.progress(finished_epochs + under_way, finished_runs)
        return problems


EXECUTORS = ("local", "ray", "slurm")
"""Modules of this package, each with `open_executor(request)` and its ACCEPTED_OPTIONS of `ExecutorOptions`."""
FORWARDED_VARIABLES = ("ISDA_DATA", "PYTHONPATH")
"""Variables that runs find on another machine as here: where data is, and code of the user's own."""
_EXECUTOR_OPTIONS = {"cpus_per_run": None, "gpus_per_run": None, "sbatch": ()}
"""Options that only some executors accept, and their defaults."""
_MAXIMA = {"jobs": 10_000, "processes_per_run": 1024, "cpus_per_run": 10_000}
"""The largest value of each number."""


@dataclass(frozen=True, kw_only=True)
class ExecutorOptions:
    """Where runs are made, and how many at a time."""

    on: str = "local"
    """local: processes of this machine; ray: the cluster at RAY_ADDRESS, or else one that is started here; ray:ADDRESS:
    that cluster; slurm: write an array job and say how to submit it (docs/scale.md)."""
    jobs: int | None = None
    """Runs at the same time, which share the threads; 1 if left out, on a cluster as many as it has room for."""
    processes_per_run: int = 1
    """Processes that train each run together, started by torchrun."""
    cpus_per_run: int | None = None
    """CPUs that each run takes of a cluster; one per process if left out."""
    gpus_per_run: float | None = None
    """GPUs that each run takes of a cluster. If left out: on Ray one per process, where there are GPUs and --device is
    auto or cuda; on Slurm none."""
    sbatch: tuple[str, ...] = ()
    """Options of sbatch for --on slurm, without dashes: partition=gpu time=8:00:00."""

    def check(self) -> None:
        """Raise a ValueError if a number cannot be."""
        for name, most in _MAXIMA.items():
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
            if value is not None and value > most:
                raise ValueError(f"{name} must be at most {most}, got {value}")
        if self.gpus_per_run is not None and not 0 <= self.gpus_per_run < float("inf"):
            raise ValueError(f"gpus_per_run must be 0 or more, got {self.gpus_per_run}")


@dataclass(frozen=True, kw_only=True)
class ExecutorRequest:
    """A pool that is wanted."""

    spread: ExecutorOptions
    folder: Path
    """Of all runs, for what a place has to write down."""
    command: Sequence[str] = field(default_factory=tuple)
    """The words that make the table when all runs are there."""
    threads: int | None = None
    """CPU threads of each run, where the user has a wish."""
    most: int | None = None
    """How many runs there will be, where that is known."""

    @property
    def address(self) -> str:
        """What follows the colon of --on."""
        return self.spread.on.partition(":")[2]

    @property
    def jobs(self) -> int:
        """Runs at the same time on this machine."""
        jobs = 1 if self.spread.jobs is None else self.spread.jobs
        return jobs if self.most is None else max(1, min(jobs, self.most))


def open_executor(request: ExecutorRequest) -> AbstractContextManager[Executor]:
    """The pool of a request; nothing is started before it is given runs.

    Raises:
        ValueError: there is no such place, it lacks something here, or it does not take an option that was given.
    """
    spread = request.spread
    spread.check()
    name, colon, address = spread.on.partition(":")
    executor = import_module(f"isda.engine.executors.{check_choice('on', name, EXECUTORS)}")
    if colon and not (address and "address" in executor.ACCEPTED_OPTIONS):
        raise ValueError(f"on must be one of {', '.join(EXECUTORS)} or ray:ADDRESS, got {spread.on!r}")
    for option, left_out in _EXECUTOR_OPTIONS.items():
        if getattr(spread, option) != left_out and option not in executor.ACCEPTED_OPTIONS:
            raise ValueError(f"{option} must be left out with --on {name}, got {getattr(spread, option)}")
    opened: AbstractContextManager[Executor] = executor.open_executor(request)
    return opened
