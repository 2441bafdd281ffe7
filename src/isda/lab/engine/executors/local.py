"""Worker processes of this machine, which save and exit when the process that started them ends."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from multiprocessing.process import BaseProcess

import torch

from isda.lab.engine.executors.runs import PlannedRun, RunProblem, execute
from isda.lab.engine.processes import raise_stopped, remember_signals
from isda.lab.text import use_plain_warnings


@contextmanager
def process_executor(jobs: int) -> Iterator[Executor]:
    """Processes that share the threads evenly; on a signal their current runs are saved.

    Raises:
        Stopped: after SIGTERM or Ctrl-C; the current runs have saved a checkpoint.
    """
    threads = max(1, torch.get_num_threads() // jobs)
    # A forked child would inherit locks of torch's threads.
    pool = ProcessPoolExecutor(
        jobs, mp_context=get_context("spawn"), initializer=_prepare, initargs=(threads, os.getcwd())
    )

    def save_all() -> None:
        for process in list((pool._processes or {}).values()):
            process.terminate()

    with raise_stopped(save_all):
        try:
            yield pool
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _prepare(threads: int, folder: str) -> None:
    """Initialise a worker process; the folder may hold a user-defined task."""
    sys.path.append(folder)
    torch.set_num_threads(threads)
    use_plain_warnings()
    remember_signals()
    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_exit_after, args=(parent,), daemon=True).start()


def _exit_after(parent: BaseProcess) -> None:
    """Save the current run and exit when the parent process has ended, even by a kill."""
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    with _at_work:
        os._exit(1)  # the main thread waits for a queue that nothing will fill


_at_work = threading.Lock()
"""Held by a worker process while it trains."""


def work_here(run: PlannedRun, processes: int) -> RunProblem | None:
    """Execute a run in a worker process."""
    with _at_work:
        return execute(run, processes)
