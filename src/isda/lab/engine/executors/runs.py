"""Planned runs, their execution by an executor, and the options that choose one. Does not import torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from isda.lab.choices import check_choice, check_range
from isda.lab.engine.settings import Saving

if TYPE_CHECKING:
    from isda.lab.engine.config import RunConfig
    from isda.lab.engine.task import Task

POLL_SECONDS = 0.2
"""Between two looks at the runs."""
PROGRESS_SECONDS = 1.0
"""Between two counts of their epochs, which reads files."""


@dataclass(frozen=True, kw_only=True)
class ExecutorOptions:
    """Where runs are executed, and how many at a time."""

    on: str = "local"
    """local: processes of this machine; ray: the cluster at RAY_ADDRESS, or else one that is started here; ray:ADDRESS:
    that cluster; slurm: a job for each run."""
    jobs: int | None = None
    """Runs at the same time, which share the threads; by default 1, on a cluster as many as it has room for."""
    processes_per_run: int = 1
    """Processes that train each run together, started by torchrun."""
    cpus_per_run: int | None = None
    """CPUs of a cluster for each run; by default one per process."""
    gpus_per_run: float = 0
    """GPUs of a cluster for each run."""
    slurm: dict[str, str] = field(default_factory=dict)
    """Further options of sbatch for --on slurm: partition gpu time 480."""

    def check(self) -> None:
        """Raise a ValueError for an executor that does not exist, or a number out of range."""
        check_choice("on", self.on.partition(":")[0], ("local", "ray", "slurm"))
        for name, largest in (("jobs", 10_000), ("processes_per_run", 1024), ("cpus_per_run", 10_000)):
            if getattr(self, name) is not None:
                check_range(name, getattr(self, name), 1, largest)


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
        super().__init__(f"{len(problems)} of {runs} runs failed: {details}")
        self.problems = problems


class Watcher:
    """Callbacks for the progress of several runs; the base class does nothing."""

    def start(self, total_epochs: int, runs: int) -> None:
        """Before the first run."""

    def progress(self, epochs: int, finished: int) -> None:
        """Called with the numbers of finished epochs and runs."""

    def run_finished(self, folder: Path, problem: str | None) -> None:
        """Called after each run, with a sentence if it failed."""


@dataclass(frozen=True)
class Execution:
    """An executor, and how a run is given to it."""

    executor: Executor
    jobs: int | None
    """Runs that are given to it at the same time; None for all."""
    work: Callable[[PlannedRun], RunProblem | None]


@contextmanager
def open_execution(options: ExecutorOptions, folder: Path, threads: int | None = None) -> Iterator[Execution]:
    """The executor that the options name.

    Args:
        options: which one, and what a run gets of it.
        folder: of all runs, for the logs of a cluster.
        threads: CPU threads of a run on a cluster; as many as it has CPUs by default.
    """
    from isda.lab.engine.executors.clusters import ray_executor, slurm_executor
    from isda.lab.engine.executors.local import process_executor, work_here

    options.check()
    name, _, address = options.on.partition(":")
    processes, jobs = options.processes_per_run, options.jobs
    if name == "local":
        with process_executor(jobs or 1) as executor:
            yield Execution(executor, jobs or 1, partial(work_here, processes=processes))
        return
    cpus = options.cpus_per_run or processes
    work = partial(execute, processes=processes, threads=threads or cpus)
    if name == "ray":
        with ray_executor(address, cpus, options.gpus_per_run, jobs or 1) as executor:
            yield Execution(executor, jobs, work)
    else:
        with slurm_executor(folder / "slurm", cpus, options.gpus_per_run, options.slurm) as executor:
            yield Execution(executor, jobs, work)


def run_all(planned: Sequence[PlannedRun], execution: Execution, watcher: Watcher) -> dict[Path, RunProblem]:
    """Execute every run that is not finished; returns the problems by run folder."""
    from isda.lab.engine.run_folder import RunFolder

    watcher.start(sum(run.config.epochs for run in planned), len(planned))
    waiting = [run for run in planned if not RunFolder(run.folder).finished]
    ended = [run for run in planned if run not in waiting]
    for run in ended:
        watcher.run_finished(run.folder, None)
    problems: dict[Path, RunProblem] = {}
    running: dict[Any, PlannedRun] = {}
    counted = 0.0
    while waiting or running:
        while waiting and (execution.jobs is None or len(running) < execution.jobs):
            run = waiting.pop(0)
            running[execution.executor.submit(execution.work, run)] = run
        time.sleep(POLL_SECONDS)
        for future in [future for future in running if future.done()]:
            run = running.pop(future)
            problem = _outcome(future)
            if problem is not None:
                problems[run.folder] = problem
            ended.append(run)
            watcher.run_finished(run.folder, None if problem is None else problem.sentence)
        if time.monotonic() - counted > PROGRESS_SECONDS or not running:
            counted = time.monotonic()
            epochs = sum(run.config.epochs for run in ended) + sum(_epochs(run.folder) for run in running.values())
            watcher.progress(epochs, len(ended))
    return problems


def _outcome(future: Any) -> RunProblem | None:
    try:
        problem: RunProblem | None = future.result()
        return problem
    except Exception as error:  # of the executor: a worker died, a machine is gone
        return RunProblem(f"{type(error).__name__}: {error}; run the same command to resume")


def _epochs(folder: Path) -> int:
    metrics = folder / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.is_file() else 0


@lru_cache(maxsize=1)
def load_data_cached(task: type[Task], data: str | None, root: Path | None) -> Any:
    """The data of a task; the last data set is cached."""
    return task().load(data, root)


def execute(run: PlannedRun, processes: int = 1, threads: int | None = None) -> RunProblem | None:
    """Train a run in this process, or in several of torchrun; a finished run is left as it is."""
    import torch

    from isda.lab.engine.executors.several import run_in_processes
    from isda.lab.engine.processes import NonFiniteLoss
    from isda.lab.engine.run_folder import ERROR_FILE, RunFolder

    threads = threads or torch.get_num_threads()
    torch.set_num_threads(max(1, threads // processes))
    if RunFolder(run.folder).finished:
        return None
    try:
        if processes == 1:
            train_run(run)
            return None
        return run_in_processes(run, processes, threads)
    except Exception as error:
        hint = f"; the traceback is in {ERROR_FILE}" if (run.folder / ERROR_FILE).is_file() else ""
        return RunProblem(f"{error or type(error).__name__}{hint}", isinstance(error, NonFiniteLoss))


def train_run(run: PlannedRun) -> None:
    """Train, alone or as one of the processes that torchrun started."""
    from isda.lab.engine.callbacks import TensorBoard
    from isda.lab.engine.loop import train
    from isda.lab.engine.processes import join_processes

    data = load_data_cached(run.task, run.data, run.data_root)
    with join_processes(run.device) as processes:
        train(
            run.config,
            data,
            run.folder,
            task=run.task(),
            processes=processes,
            saving=run.saving,
            hooks=[TensorBoard()],
            data_root=run.data_root,
            workers=run.workers,
        )
