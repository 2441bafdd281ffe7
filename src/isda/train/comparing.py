"""Methods x seeds on one data set: every run in a folder of its own, several at a time, resumed where they stopped."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from multiprocessing import get_context, parent_process
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from isda.data import DataSet, load
from isda.train.config import Config
from isda.train.interruptions import Stopped, remember_signals
from isda.train.loop import Saving, train
from isda.train.processes import join_processes
from isda.train.resolving import load_data, resolve
from isda.train.run_folder import RunFolder, check_resumable
from isda.train.settings import Settings
from isda.train.tensorboard import TensorBoard

__all__ = ["Watcher", "compare", "run_folder_name"]

# What the other runs get to save after a worker has died.
SECONDS_TO_SAVE = 20.0
# How often the parent looks how far the runs have come.
LOOK_EVERY = 0.5
# Held by a worker process while it trains.
_at_work = threading.Lock()


class Watcher:
    """Told how far a comparison has come; the base class keeps quiet."""

    def start(self, total_epochs: int, runs: int) -> None:
        """Before the first run."""

    def progress(self, epochs: int, finished: int) -> None:
        """Epochs and runs that are done so far."""

    def run_finished(self, folder: Path, problem: str | None) -> None:
        """A run has ended, with a sentence if it did not end well."""


@dataclass(frozen=True)
class _Task:
    config: Config
    folder: Path
    data_root: Path | None
    device: str
    saving: Saving


def run_folder_name(method: str, seed: int) -> Path:
    """Where a comparison puts a run, relative to its own folder.

    Example:
        >>> run_folder_name("isda:lambda_0=2,decay=0.99", 3).as_posix()
        'isda-lambda_0=2-decay=0.99/seed-3'
    """
    return Path(re.sub(r"[^\w.=+-]+", "-", method)) / f"seed-{seed}"


def compare(
    settings: Settings,
    methods: Sequence[str],
    seeds: Sequence[int],
    out: Path,
    *,
    jobs: int = 1,
    data_root: Path | None = None,
    device: str = "auto",
    saving: Saving | None = None,
    watcher: Watcher | None = None,
) -> list[Path]:
    """Train every method with every seed; returns the run folders. Runs that are finished already stay as they are.

    For one seed all methods see the same images, initial weights, order of batches and augmentation: runs are paired.

    Args:
        settings: what the runs share; their method and seed are replaced.
        methods: as in `Settings.method`.
        seeds: of the runs.
        out: the folder for the run folders.
        jobs: processes that train at the same time; they share the cores evenly.
        data_root: the folder of data sets.
        device: where to train, as in `join_processes`.
        saving: when runs write checkpoints.
        watcher: told how far things have come.

    Raises:
        ValueError: a setting is wrong, before anything is trained; or runs failed, after all others are done.
        Stopped: SIGTERM or Ctrl-C came; the runs at hand have saved a checkpoint.
    """
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}")
    for name, values in (("methods", methods), ("seeds", seeds)):
        if not values or len(set(values)) < len(values):
            raise ValueError(f"{name} must be given, each once, got {list(values)}")
    data = load_data(settings, data_root)
    tasks = []
    for seed in seeds:
        for method in methods:
            config = resolve(replace(settings, method=method, seed=seed), data)
            tasks.append(_Task(config, out / run_folder_name(method, seed), data_root, device, saving or Saving()))
    for task in tasks:
        _check_same(task)
    problems = _run_all(tasks, min(jobs, len(tasks)), watcher or Watcher())
    if problems:
        raise ValueError(f"{len(problems)} of {len(tasks)} runs failed: {'; '.join(problems)}")
    return [task.folder for task in tasks]


def _check_same(task: _Task) -> None:
    """A folder that holds another run is neither overwritten nor mixed up with this one."""
    run = RunFolder(task.folder)
    if run.started:
        check_resumable(run, task.config)


def _run_all(tasks: Sequence[_Task], jobs: int, watcher: Watcher) -> list[str]:
    watcher.start(sum(task.config.epochs for task in tasks), len(tasks))
    problems: list[str] = []
    waiting, running = list(tasks), dict[Future[str | None], _Task]()
    finished_epochs = finished_runs = 0
    threads = max(1, torch.get_num_threads() // jobs)
    with _pool(jobs, threads) as pool:
        while waiting or running:
            while waiting and len(running) < jobs:
                task = waiting.pop(0)
                running[pool.submit(_run_one, task)] = task
            done, _ = wait(running, timeout=LOOK_EVERY, return_when=FIRST_COMPLETED)
            for future in done:
                task = running.pop(future)
                problem = future.result()
                problems += [f"{task.folder}: {problem}"] if problem else []
                watcher.run_finished(task.folder, problem)
                finished_epochs, finished_runs = finished_epochs + task.config.epochs, finished_runs + 1
            under_way = sum(len(RunFolder(task.folder).read_metrics()) for task in running.values())
            watcher.progress(finished_epochs + under_way, finished_runs)
    return problems


@contextmanager
def _pool(jobs: int, threads: int) -> Iterator[ProcessPoolExecutor]:
    """Worker processes that save and end when this process is asked to end."""
    # A forked child would inherit locks of torch's threads.
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_prepare_worker, initargs=(threads,))

    workers: dict[int, BaseProcess] = pool._processes  # type: ignore[assignment]

    def pass_on(number: int, frame: object) -> None:
        for process in list(workers.values()):
            process.terminate()
        raise Stopped(f"stopped by {signal.Signals(number).name}; the runs at hand are saved")

    caught = (signal.SIGTERM, signal.SIGINT) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, pass_on) for number in caught}
    try:
        yield pool
    except BrokenProcessPool as error:
        _end(workers)
        raise OSError(
            "a worker process ended without a word, perhaps for want of memory; the same command goes on"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(workers: Mapping[int, BaseProcess]) -> None:
    """After one worker has died: the pool has told the others to stop, which saves their runs but does not end them."""
    deadline = time.monotonic() + SECONDS_TO_SAVE
    for process in list(workers.values()):
        process.join(max(0.0, deadline - time.monotonic()))
        process.kill()


def _prepare_worker(threads: int) -> None:
    torch.set_num_threads(threads)
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


@lru_cache(maxsize=1)
def _load_once(name: str, root: Path | None) -> DataSet:
    return load(name, root)


def _run_one(task: _Task) -> str | None:
    """Train in a worker process; a sentence says what went wrong."""
    if RunFolder(task.folder).finished:
        return None
    try:
        data = _load_once(task.config.data, task.data_root)
        with _at_work, join_processes(task.device) as processes:
            train(
                task.config,
                data,
                task.folder,
                processes=processes,
                saving=task.saving,
                hooks=[TensorBoard()],
                data_root=task.data_root,
            )
    except (Stopped, ValueError, OSError) as error:
        return str(error)
    except Exception as error:
        # The other runs go on, and the user still learns what kind of error it was.
        return f"{type(error).__name__}: {error}"
    return None
