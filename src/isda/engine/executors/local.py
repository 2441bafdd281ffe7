"""Executor: worker processes on this machine. They save and exit when the parent process ends."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from multiprocessing import get_context, parent_process
from multiprocessing.process import BaseProcess

import torch

from isda._utils.text import use_plain_warnings
from isda.engine.executors import ExecutorRequest, PlannedRun, RunProblem, WorkerExecutor
from isda.engine.executors.worker import run_in_processes
from isda.engine.processes import raise_stopped, remember_signals

ACCEPTED_OPTIONS = ()
# What the other runs get to save after a worker has died.
SECONDS_TO_SAVE = 20.0
# Held by a worker process while it trains.
_at_work = threading.Lock()


def open_executor(request: ExecutorRequest) -> AbstractContextManager[WorkerExecutor]:
    """Worker processes for a request."""
    return local_executor(request.jobs, request.spread.processes_per_run)


class _LocalExecutor(WorkerExecutor):
    def __init__(self, executor: ProcessPoolExecutor, jobs: int, processes: int) -> None:
        self.executor, self.jobs, self.processes = executor, jobs, processes

    def submit(self, one: PlannedRun) -> Future[RunProblem | None]:
        return self.executor.submit(_work, one, self.processes)


@contextmanager
def local_executor(jobs: int, processes: int = 1) -> Iterator[WorkerExecutor]:
    """Worker processes that save and end when this process is asked to end; they share the threads evenly.

    Args:
        jobs: runs at the same time.
        processes: of each run.

    Raises:
        ValueError: ``jobs`` is less than 1.
        Stopped: SIGTERM or Ctrl-C came; the runs at hand have saved a checkpoint.
    """
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}")
    threads = max(1, torch.get_num_threads() // jobs)
    # A forked child would inherit locks of torch's threads.
    executor = ProcessPoolExecutor(
        jobs, mp_context=get_context("spawn"), initializer=_prepare_worker, initargs=(threads, os.getcwd())
    )
    workers: dict[int, BaseProcess] = executor._processes  # type: ignore[assignment]

    def pass_on() -> None:
        for process in list(workers.values()):
            process.terminate()

    with raise_stopped(pass_on):
        try:
            yield _LocalExecutor(executor, jobs, processes)
        except BrokenProcessPool as error:
            _end(workers)
            raise OSError(
                "a worker process ended without a word, perhaps for want of memory; the same command goes on"
            ) from error
        finally:
            executor.shutdown(wait=True, cancel_futures=True)


def _end(processes: Mapping[int, BaseProcess]) -> None:
    """After one worker has died: the pool has told the others to stop, which saves their runs but does not end them."""
    deadline = time.monotonic() + SECONDS_TO_SAVE
    for process in list(processes.values()):
        process.join(max(0.0, deadline - time.monotonic()))
        process.kill()


def _prepare_worker(threads: int, folder: str) -> None:
    """In a new worker process; a task of the user's own, by which runs come, may be in the folder."""
    if folder not in sys.path:
        sys.path.append(folder)
    torch.set_num_threads(threads)
    use_plain_warnings()
    remember_signals()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Wait for the end of the parent, which may come without a word; then save the run at hand, and end."""
    if (parent := parent_process()) is not None:
        parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    with _at_work:
        os._exit(1)  # the main thread waits for a queue that nobody will ever fill


def _work(one: PlannedRun, processes: int) -> RunProblem | None:
    """Make a run in a worker process."""
    with _at_work:
        return run_in_processes(processes, one, torch.get_num_threads())
