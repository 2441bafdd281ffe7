"""Any number of runs, several at a time in worker processes, resumed where they stopped."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from multiprocessing import get_context, parent_process
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import torch

from isda.engine.folder.config import RunConfig
from isda.engine.folder.run_folder import RunFolder
from isda.engine.interruptions import NonFiniteLoss, Stopped, remember_signals
from isda.engine.loop import train
from isda.engine.processes import join_processes
from isda.engine.saving import Saving
from isda.engine.task import Task
from isda.engine.watching.tensorboard import TensorBoard
from isda.plain_text import use_plain_warnings

__all__ = ["Planned", "Problem", "RunsFailed", "Watcher", "load_once", "run_planned", "worker_pool"]

# What the other runs get to save after a worker has died.
SECONDS_TO_SAVE = 20.0
# How often the parent looks how far the runs have come.
LOOK_EVERY = 0.5
# Held by a worker process while it trains.
_at_work = threading.Lock()


class Problem(NamedTuple):
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

    def __init__(self, problems: Mapping[Path, Problem], runs: int) -> None:
        told = "; ".join(f"{folder}: {problem.sentence}" for folder, problem in problems.items())
        super().__init__(f"{len(problems)} of {runs} runs failed: {told}")
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
class Planned:
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


def run_planned(
    planned: Sequence[Planned],
    jobs: int = 1,
    watcher: Watcher | None = None,
    pool: ProcessPoolExecutor | None = None,
) -> None:
    """Make every run that is not finished yet.

    Args:
        planned: the runs; nothing is begun unless all of them can be.
        jobs: processes that train at the same time; they share the cores evenly.
        watcher: told how far things have come.
        pool: a `worker_pool` for as many jobs that stay for further runs; by default they come and go with these.

    Raises:
        ValueError: a folder holds another run or a damaged one, before anything is trained.
        RunsFailed: runs failed, after all others are done.
        Stopped: SIGTERM or Ctrl-C came; the runs at hand have saved a checkpoint.
    """
    for one in planned:
        run = RunFolder(one.folder)
        if run.started:
            run.check_resumable(one.config)
        if run.started and run.finished:
            run.read_result()
    jobs = min(jobs, len(planned))
    with worker_pool(jobs) if pool is None else nullcontext(pool) as made:
        problems = _run_all(planned, jobs, watcher or Watcher(), made)
    if problems:
        raise RunsFailed(problems, len(planned))


@lru_cache(maxsize=1)
def load_once(task: type[Task], data: str | None, root: Path | None) -> Any:
    """The data of a task; the last one asked for is kept."""
    return task().load(data, root)


def _run_all(planned: Sequence[Planned], jobs: int, watcher: Watcher, pool: ProcessPoolExecutor) -> dict[Path, Problem]:
    watcher.start(sum(one.config.epochs for one in planned), len(planned))
    problems: dict[Path, Problem] = {}
    waiting, running = list[Planned](), dict[Future[Problem | None], Planned]()
    finished_epochs = finished_runs = 0
    for one in planned:
        if RunFolder(one.folder).finished:
            watcher.run_finished(one.folder, None)
            finished_epochs, finished_runs = finished_epochs + one.config.epochs, finished_runs + 1
        else:
            waiting.append(one)
    while waiting or running:
        while waiting and len(running) < jobs:
            one = waiting.pop(0)
            running[pool.submit(_run_one, one)] = one
        done, _ = wait(running, timeout=LOOK_EVERY, return_when=FIRST_COMPLETED)
        for future in done:
            one = running.pop(future)
            problem = future.result()
            if problem:
                problems[one.folder] = problem
            watcher.run_finished(one.folder, problem.sentence if problem else None)
            finished_epochs, finished_runs = finished_epochs + one.config.epochs, finished_runs + 1
        under_way = sum(len(RunFolder(one.folder).read_metrics()) for one in running.values())
        watcher.progress(finished_epochs + under_way, finished_runs)
    return problems


@contextmanager
def worker_pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Worker processes that save and end when this process is asked to end; they share the threads evenly.

    Raises:
        ValueError: ``jobs`` is less than 1.
        Stopped: SIGTERM or Ctrl-C came; the runs at hand have saved a checkpoint.
    """
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}")
    threads = max(1, torch.get_num_threads() // jobs)
    # A forked child would inherit locks of torch's threads.
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_prepare_worker, initargs=(threads,))

    processes: dict[int, BaseProcess] = pool._processes  # type: ignore[assignment]

    def pass_on(number: int, frame: object) -> None:
        for process in list(processes.values()):
            process.terminate()
        name = signal.Signals(number).name
        raise Stopped(f"stopped by {name}; the runs at hand are saved", name)

    caught = (signal.SIGTERM, signal.SIGINT) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, pass_on) for number in caught}
    try:
        yield pool
    except BrokenProcessPool as error:
        _end(processes)
        raise OSError(
            "a worker process ended without a word, perhaps for want of memory; the same command goes on"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(processes: Mapping[int, BaseProcess]) -> None:
    """After one worker has died: the pool has told the others to stop, which saves their runs but does not end them."""
    deadline = time.monotonic() + SECONDS_TO_SAVE
    for process in list(processes.values()):
        process.join(max(0.0, deadline - time.monotonic()))
        process.kill()


def _prepare_worker(threads: int) -> None:
    torch.set_num_threads(threads)
    use_plain_warnings()
    remember_signals()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Wait for the end of the parent, which may come without a word; then save the run at hand, and end."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    with _at_work:
        os._exit(1)  # the main thread waits for a queue that nobody will ever fill


def _run_one(one: Planned) -> Problem | None:
    """Train in a worker process."""
    if RunFolder(one.folder).finished:
        return None
    try:
        data = load_once(one.task, one.data, one.data_root)
        with _at_work, join_processes(one.device) as processes:
            train(
                one.config,
                data,
                one.folder,
                task=one.task(),
                processes=processes,
                saving=one.saving,
                hooks=[TensorBoard()],
                data_root=one.data_root,
                workers=one.workers,
            )
    except (Stopped, ValueError, OSError) as error:
        return Problem(str(error), isinstance(error, NonFiniteLoss))
    except Exception as error:
        # The other runs go on, and the user still learns what kind of error it was.
        return Problem(f"{type(error).__name__}: {error}")
    return None
