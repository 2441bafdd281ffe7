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
from typing import TYPE_CHECKING, NamedTuple

from isda._utils.choices import check_choice, check_range
from isda._utils.errors import INTERNAL
from isda.lab.engine.settings import Saving, setting

if TYPE_CHECKING:
    from isda.lab.engine.config import RunConfig
    from isda.lab.engine.task import Task

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
    """Why a run failed."""

    sentence: str
    diverged: bool = False
    """Whether its loss became NaN or infinite, which it would again."""


class RunsFailed(ValueError):
    """Some of several runs failed; the others are finished.

    Args:
        problems: by run folder.
        runs: how many there were.
    """

    def __init__(self, problems: Mapping[Path, RunProblem], runs: int) -> None:
        details = "; ".join(f"{folder}: {problem.sentence}" for folder, problem in problems.items())
        internal = INTERNAL if any(problem.sentence.startswith(INTERNAL) for problem in problems.values()) else ""
        super().__init__(f"{internal}{len(problems)} of {runs} runs failed: {details}")
        self.problems = problems


class Watcher:
    """Callbacks for the progress of several runs; the base class does nothing."""

    def start(self, total_epochs: int, runs: int) -> None:
        """Before the first run."""

    def progress(self, epochs: int, finished: int) -> None:
        """Called with the numbers of finished epochs and runs."""

    def run_finished(self, folder: Path, problem: str | None) -> None:
        """Called after each run, with a sentence if it failed."""


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """A run to be executed."""

    task: type[Task]
    config: RunConfig
    folder: Path
    data: str | None
    """As the user names it; the configuration has the name of the loaded data set."""
    data_root: Path | None = None
    device: str = "auto"
    saving: Saving = field(default_factory=Saving)
    workers: int | None = None
    """Threads that prepare batches ahead."""


# Seconds between two updates of the progress.
POLL_SECONDS = 0.5
# How often a run whose worker has died is given to another one.
MAX_RETRIES = 3


class RunsDeferred(Exception):
    """The runs were not executed but prepared for later; the message names the next command."""


class WorkerDied(Exception):
    """The process or machine that executed a run has died; the run can be resumed elsewhere."""


class Executor(ABC):
    """Executor interface used by `run_planned`."""

    def check_sequential(self) -> None:  # noqa: B027, most executors can
        """Raise a ValueError if runs are not finished when `run` returns, which runs that depend on others need."""

    @abstractmethod
    def run(self, planned: Sequence[PlannedRun], watcher: Watcher) -> dict[Path, RunProblem]:
        """Execute every run that is not finished; returns the problems by run folder.

        Raises:
            RunsDeferred: the runs were prepared for later.
        """


class _EpochCounter:
    """Counts the epochs of runs by the lines of their metrics files; reads only what was added since the last call."""

    def __init__(self) -> None:
        self._seen: dict[Path, tuple[int, int]] = {}
        """By run folder: bytes that were read, and lines in them."""

    def count(self, folder: Path) -> int:
        """Epochs that a run has recorded; 0 if its metrics file cannot be read."""
        from isda.lab.engine.run_folder import RunFolder

        position, lines = self._seen.get(folder, (0, 0))
        try:
            with RunFolder(folder).metrics_file.open("rb") as file:
                if file.seek(0, os.SEEK_END) < position:
                    position = lines = 0  # rewritten by a run that was resumed from an earlier epoch
                file.seek(position)
                added = file.read()
        except OSError:
            return 0
        # A line may be half written.
        whole = added.rfind(b"\n") + 1
        self._seen[folder] = (position + whole, lines + added.count(b"\n"))
        return self._seen[folder][1]


class WorkerExecutor(Executor):
    """Submits runs to workers as they become free."""

    jobs: int | None = None
    """Runs at the same time; None for as many as the cluster has room for."""

    @abstractmethod
    def submit(self, run: PlannedRun) -> Future[RunProblem | None]:
        """Submit a run; if the future raises `WorkerDied`, the run is submitted again."""

    def run(self, planned: Sequence[PlannedRun], watcher: Watcher) -> dict[Path, RunProblem]:
        """Execute every run that is not finished; returns the problems by run folder."""
        from isda.lab.engine.run_folder import RunFolder

        watcher.start(sum(run.config.epochs for run in planned), len(planned))
        problems: dict[Path, RunProblem] = {}
        waiting, running = list[PlannedRun](), dict[Future[RunProblem | None], PlannedRun]()
        deaths: Counter[Path] = Counter()
        finished_epochs = finished_runs = 0
        epochs = _EpochCounter()
        for run in planned:
            if RunFolder(run.folder).finished:
                watcher.run_finished(run.folder, None)
                finished_epochs, finished_runs = finished_epochs + run.config.epochs, finished_runs + 1
            else:
                waiting.append(run)
        while waiting or running:
            while waiting and (self.jobs is None or len(running) < self.jobs):
                run = waiting.pop(0)
                running[self.submit(run)] = run
            done, _ = wait(running, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
            for future in done:
                run = running.pop(future)
                try:
                    problem = future.result()
                except WorkerDied:
                    deaths[run.folder] += 1
                    if deaths[run.folder] <= MAX_RETRIES:
                        waiting.insert(0, run)
                        continue
                    problem = RunProblem(f"its worker died {deaths[run.folder]} times; run the same command to resume")
                if problem:
                    problems[run.folder] = problem
                watcher.run_finished(run.folder, problem.sentence if problem else None)
                finished_epochs, finished_runs = finished_epochs + run.config.epochs, finished_runs + 1
            running_epochs = sum(epochs.count(run.folder) for run in running.values())
            watcher.progress(finished_epochs + running_epochs, finished_runs)
        return problems


EXECUTION = "Execution"
"""The section of the options in help texts."""
EXECUTORS = ("local", "ray", "slurm")
"""Modules of this package, each with `open_executor(request)` and its ACCEPTED_OPTIONS of `ExecutorOptions`."""
FORWARDED_VARIABLES = ("ISDA_DATA", "PYTHONPATH")
"""Environment variables that are set on other machines as here: the data folder, and the path of user code."""
_EXECUTOR_OPTIONS = {"cpus_per_run": None, "gpus_per_run": None, "sbatch": ()}
"""Options that only some executors accept, and their defaults."""
_MAXIMA = {"jobs": 10_000, "processes_per_run": 1024, "cpus_per_run": 10_000}
"""The largest value of each number."""


@dataclass(frozen=True, kw_only=True)
class ExecutorOptions:
    """Where runs are executed, and how many at a time."""

    on: str = setting("local", section=EXECUTION, metavar="EXECUTOR")
    """local: processes of this machine; ray: the cluster at RAY_ADDRESS, or else one that is started here; ray:ADDRESS:
    that cluster; slurm: write an array job for you to submit (docs/scale.md)."""
    jobs: int | None = setting(None, section=EXECUTION, default_text="1; on a cluster as many as it has room for")
    """Runs at the same time, which share the threads."""
    processes_per_run: int = setting(1, section=EXECUTION, rare=True)
    """Processes that train each run together, started by torchrun."""
    cpus_per_run: int | None = setting(None, section=EXECUTION, default_text="one per process", rare=True)
    """CPUs of a cluster for each run."""
    gpus_per_run: float | None = setting(
        None,
        section=EXECUTION,
        default_text="on Ray one per process, if there are GPUs and --device is auto or cuda; on Slurm none",
        rare=True,
    )
    """GPUs of a cluster for each run."""
    sbatch: tuple[str, ...] = setting((), section=EXECUTION, metavar="KEY=VALUE [KEY=VALUE ...]", rare=True)
    """Options of sbatch for --on slurm, without dashes: partition=gpu time=8:00:00."""

    def check(self) -> None:
        """Raise a ValueError if a number is out of range."""
        for name, largest in _MAXIMA.items():
            if (value := getattr(self, name)) is not None:
                check_range(name, value, 1, largest)
        if self.gpus_per_run is not None and not 0 <= self.gpus_per_run < float("inf"):
            raise ValueError(f"gpus_per_run must be 0 or more, got {self.gpus_per_run}")


@dataclass(frozen=True, kw_only=True)
class ExecutorRequest:
    """What an executor is opened for."""

    options: ExecutorOptions
    folder: Path
    """Of all runs, for files of the executor."""
    command: Sequence[str] = field(default_factory=tuple)
    """The command that prints the table when all runs are finished."""
    threads: int | None = None
    """CPU threads of each run, if given."""
    max_runs: int | None = None
    """The number of runs, if it is known."""

    @property
    def address(self) -> str:
        """The text after the colon of --on."""
        return self.options.on.partition(":")[2]

    @property
    def jobs(self) -> int:
        """Runs at the same time on this machine."""
        jobs = self.options.jobs or 1
        return jobs if self.max_runs is None else max(1, min(jobs, self.max_runs))


def open_executor(request: ExecutorRequest) -> AbstractContextManager[Executor]:
    """The executor of a request; it starts nothing before it is given runs.

    Raises:
        ValueError: the executor is unknown, lacks a library, or does not support a given option.
    """
    options = request.options
    options.check()
    name, colon, address = options.on.partition(":")
    executor = import_module(f"isda.lab.engine.executors.{check_choice('on', name, EXECUTORS)}")
    if colon and not (address and "address" in executor.ACCEPTED_OPTIONS):
        raise ValueError(f"on must be one of {', '.join(EXECUTORS)} or ray:ADDRESS, got {options.on!r}")
    for option, default in _EXECUTOR_OPTIONS.items():
        if getattr(options, option) != default and option not in executor.ACCEPTED_OPTIONS:
            raise ValueError(f"--on {name} does not support {option}, got {getattr(options, option)}")
    opened: AbstractContextManager[Executor] = executor.open_executor(request)
    return opened
