"""Executor: worker processes on this machine. They save and exit when the parent process ends."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from multiprocessing import get_context, parent_process
from multiprocessing.process import BaseProcess

import torch

from isda._utils.text import use_plain_warnings
from isda.lab.engine.executors import ExecutorRequest, PlannedRun, RunProblem, WorkerExecutor
from isda.lab.engine.executors.worker import run_in_processes
from isda.lab.engine.processes import raise_stopped, remember_signals

ACCEPTED_OPTIONS = ()
# Time for the other runs to save after a worker has died.
SECONDS_TO_SAVE = 20.0
# Held by a worker process while it trains.
_at_work = threading.Lock()


def open_executor(request: ExecutorRequest) -> AbstractContextManager[WorkerExecutor]:
    """Worker processes for a request."""
    return local_executor(request.jobs, request.options.processes_per_run)


class _LocalExecutor(WorkerExecutor):
    def __init__(self, pool: ProcessPoolExecutor, jobs: int, processes: int) -> None:
        self.pool, self.jobs, self.processes = pool, jobs, processes

    def submit(self, run: PlannedRun) -> Future[RunProblem | None]:
        return self.pool.submit(_work, run, self.processes)


@contextmanager
def local_executor(jobs: int, processes: int = 1) -> Iterator[WorkerExecutor]:
    """Worker processes, which share the threads evenly; they save and exit when this process receives a signal to exit.

    Args:
        jobs: runs at the same time.
        processes: of each run.

    Raises:
        ValueError: ``jobs`` is less than 1.
        Stopped: after SIGTERM or Ctrl-C; the current runs have saved a checkpoint.
    """
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}")
    threads = max(1, torch.get_num_threads() // jobs)
    # A forked child would inherit locks of torch's threads.
    pool = ProcessPoolExecutor(
        jobs, mp_context=get_context("spawn"), initializer=_prepare_worker, initargs=(threads, os.getcwd())
    )
    workers: dict[int, BaseProcess] = pool._processes  # type: ignore[assignment]

    def pass_on() -> None:
        for process in list(workers.values()):
            process.terminate()

    with raise_stopped(pass_on):
        try:
            yield _LocalExecutor(pool, jobs, processes)
        except BrokenProcessPool as error:
            # The pool has terminated the other workers, which saves their runs but does not end the processes.
            deadline = time.monotonic() + SECONDS_TO_SAVE
            for process in list(workers.values()):
                process.join(max(0.0, deadline - time.monotonic()))
                process.kill()
            raise OSError("a worker process died (out of memory?); run the same command to resume") from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _prepare_worker(threads: int, folder: str) -> None:
    """Initialise a worker process; the folder may hold a user-defined task."""
    if folder not in sys.path:
        sys.path.append(folder)
    torch.set_num_threads(threads)
    use_plain_warnings()
    remember_signals()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Wait until the parent process has ended, even by a kill; then save the current run and exit."""
    if (parent := parent_process()) is not None:
        parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    with _at_work:
        os._exit(1)  # the main thread waits for a queue that nothing will fill


def _work(run: PlannedRun, processes: int) -> RunProblem | None:
    with _at_work:
        return run_in_processes(processes, run, torch.get_num_threads())
