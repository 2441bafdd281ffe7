"""Methods x seeds on one data set: every run in a folder of its own, several at a time, resumed where they stopped."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from multiprocessing import get_context, parent_process
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from isda.engine.folder.config import RunConfig
from isda.engine.folder.run_folder import RunFolder
from isda.engine.grammar import canonical
from isda.engine.interruptions import Stopped, remember_signals
from isda.engine.loop import train
from isda.engine.processes import join_processes
from isda.engine.saving import Saving
from isda.engine.settings import RunSettings
from isda.engine.task import Task
from isda.engine.watching.tensorboard import TensorBoard

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
class _Planned:
    """A run to be made."""

    task: type[Task]
    config: RunConfig
    folder: Path
    data_root: Path | None
    device: str
    saving: Saving
    workers: int | None


def run_folder_name(method: str, seed: int) -> Path:
    """Where a comparison puts a run, relative to its own folder.

    Example:
        >>> run_folder_name("isda:lambda_0=2.0,decay=0.99", 3).as_posix()
        'isda-lambda_0=2-decay=0.99/seed-3'
    """
    return Path(re.sub(r"[^\w.=+-]+", "-", canonical(method))) / f"seed-{seed}"


def compare(
    settings: RunSettings,
    methods: Sequence[str],
    seeds: Sequence[int],
    out: Path,
    *,
    task_of: Callable[[str], Task],
    jobs: int = 1,
    data_root: Path | None = None,
    device: str = "auto",
    saving: Saving | None = None,
    workers: int | None = None,
    watcher: Watcher | None = None,
) -> list[Path]:
    """Train every method with every seed; returns the run folders. Runs that are finished already stay as they are.

    For one seed all methods see the same images, initial weights, order of batches and augmentation: runs are paired.

    Args:
        settings: what the runs share; their method and seed are replaced.
        methods: as in `RunSettings.method`.
        seeds: of the runs.
        out: the folder for the run folders.
        task_of: the task that a method, as it is written, belongs to.
        jobs: processes that train at the same time; they share the cores evenly.
        data_root: the folder of data sets.
        device: where to train, as in `join_processes`.
        saving: when runs write checkpoints.
        workers: threads of each run that prepare batches ahead.
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
    planned = []
    for seed in seeds:
        for method in methods:
            task = task_of(method)
            data = _load_once(type(task), settings.data, data_root)
            config = task.resolve(replace(settings, method=method, seed=seed), data)
            folder = out / run_folder_name(method, seed)
            planned.append(
                _Planned(type(task), config, folder, data_root, device, saving or Saving(), workers),
            )
    _check_distinct(methods, planned[: len(methods)])
    for one in planned:
        run = RunFolder(one.folder)
        if run.started:
            run.check_resumable(one.config)
    problems = _run_all(planned, min(jobs, len(planned)), watcher or Watcher())
    if problems:
        raise ValueError(f"{len(problems)} of {len(planned)} runs failed: {'; '.join(problems)}")
    return [one.folder for one in planned]


def _check_distinct(methods: Sequence[str], planned: Sequence[_Planned]) -> None:
    """Two ways to write one method would give two runs of it per seed, and no table."""
    seen: dict[str, str] = {}
    for method, one in zip(methods, planned, strict=True):
        resolved = json.dumps([one.config.method, one.config.method_options], sort_keys=True)
        if resolved in seen:
            raise ValueError(f"methods must differ, got {seen[resolved]!r} and {method!r}, which are the same")
        seen[resolved] = method


def _run_all(planned: Sequence[_Planned], jobs: int, watcher: Watcher) -> list[str]:
    watcher.start(sum(one.config.epochs for one in planned), len(planned))
    problems: list[str] = []
    waiting, running = list(planned), dict[Future[str | None], _Planned]()
    finished_epochs = finished_runs = 0
    threads = max(1, torch.get_num_threads() // jobs)
    with _pool(jobs, threads) as pool:
        while waiting or running:
            while waiting and len(running) < jobs:
                one = waiting.pop(0)
                running[pool.submit(_run_one, one)] = one
            done, _ = wait(running, timeout=LOOK_EVERY, return_when=FIRST_COMPLETED)
            for future in done:
                one = running.pop(future)
                problem = future.result()
                problems += [f"{one.folder}: {problem}"] if problem else []
                watcher.run_finished(one.folder, problem)
                finished_epochs, finished_runs = finished_epochs + one.config.epochs, finished_runs + 1
            under_way = sum(len(RunFolder(one.folder).read_metrics()) for one in running.values())
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
        name = signal.Signals(number).name
        raise Stopped(f"stopped by {name}; the runs at hand are saved", name)

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
def _load_once(task: type[Task], data: str | None, root: Path | None) -> Any:
    return task().load(data, root)


def _run_one(one: _Planned) -> str | None:
    """Train in a worker process; a sentence says what went wrong."""
    if RunFolder(one.folder).finished:
        return None
    try:
        # A path that was asked for; the configuration itself has only the name of the data set.
        data = _load_once(one.task, one.config.asked.get("data", one.config.data), one.data_root)
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
        return str(error)
    except Exception as error:
        # The other runs go on, and the user still learns what kind of error it was.
        return f"{type(error).__name__}: {error}"
    return None
