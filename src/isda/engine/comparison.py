"""Run many planned runs, and compare methods over seeds on one data set."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from isda.engine.config import RunConfig
from isda.engine.executors import Executor, PlannedRun, RunsFailed, Watcher
from isda.engine.executors.local import local_executor
from isda.engine.executors.worker import load_data_cached
from isda.engine.loop import Saving
from isda.engine.options import canonical_method
from isda.engine.run_folder import RunFolder
from isda.engine.settings import RunSettings
from isda.engine.task import Task


def run_planned(
    planned: Sequence[PlannedRun], jobs: int = 1, watcher: Watcher | None = None, pool: Executor | None = None
) -> None:
    """Make every run that is not finished yet.

    Args:
        planned: the runs; nothing is begun unless all of them can be.
        jobs: processes that train at the same time, where no pool is given; they share the cores evenly.
        watcher: told how far things have come.
        pool: where the runs are made, see `isda.engine.executors`; by default in processes that come and go with them.

    Raises:
        ValueError: a folder holds another run or a damaged one, before anything is trained.
        RunsFailed: runs failed, after all others are done.
        Stopped: SIGTERM or Ctrl-C came; the runs at hand have saved a checkpoint.
        HandedOver: the pool has left the runs to somebody else.
    """
    for one in planned:
        run = RunFolder(one.folder)
        if run.started:
            run.check_resumable(one.config)
        if run.started and run.finished:
            run.read_result()
    with local_executor(min(jobs, len(planned))) if pool is None else nullcontext(pool) as made:
        problems = made.make(planned, watcher or Watcher())
    if problems:
        raise RunsFailed(problems, len(planned))


MAX_SEEDS = 1000
"""Of one command: a plan of more would take hours to make before the first run begins."""


def check_seeds(count: int, name: str = "seeds") -> None:
    """Raise a ValueError unless a command can make runs with so many seeds."""
    if not 1 <= count <= MAX_SEEDS:
        raise ValueError(f"{name} must be from 1 to {MAX_SEEDS}, got {count}")


def run_folder_name(method: str, seed: int) -> Path:
    """Where a comparison puts a run, relative to its own folder.

    Example:
        >>> run_folder_name("isda:lambda_0=2.0,decay=0.99", 3).as_posix()
        'isda-lambda_0=2-decay=0.99/seed-3'
    """
    return Path(re.sub(r"[^\w.=+-]+", "-", canonical_method(method))) / f"seed-{seed}"


@dataclass(frozen=True, kw_only=True)
class Planner:
    """Makes planned runs of settings: all that runs of a comparison share beside those."""

    task_of: Callable[[str], Task]
    """The task that a method, as it is written, belongs to."""
    data_root: Path | None = None
    device: str = "auto"
    saving: Saving = field(default_factory=Saving)
    workers: int | None = None

    def task_and_data(self, settings: RunSettings) -> tuple[Task, Any]:
        """The task of settings that name a method, and what it learns from."""
        task = self.task_of(settings.method or "")
        return task, load_data_cached(type(task), settings.data, self.data_root)

    def resolve(self, settings: RunSettings) -> RunConfig:
        """The configuration of settings that name a method; a ValueError says what is wrong with them."""
        task, data = self.task_and_data(settings)
        return task.resolve(settings, data)

    def plan(self, settings: RunSettings, folder: Path) -> PlannedRun:
        """The run of settings that name a method."""
        return PlannedRun(
            task=type(self.task_of(settings.method or "")),
            config=self.resolve(settings),
            folder=folder,
            data=settings.data,
            data_root=self.data_root,
            device=self.device,
            saving=self.saving,
            workers=self.workers,
        )


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
    pool: Executor | None = None,
) -> list[Path]:
    """Train every method with every seed; returns the run folders. Runs that are finished already stay as they are.

    For one seed all methods see the same images, initial weights, order of batches and augmentation: runs are paired.

    Args:
        settings: what the runs share; their method and seed are replaced.
        methods: as in `RunSettings.method`.
        seeds: of the runs.
        out: the folder for the run folders.
        task_of: the task that a method, as it is written, belongs to.
        jobs: processes that train at the same time, where no pool is given; they share the cores evenly.
        data_root: the folder of data sets.
        device: where to train, as in `join_processes`.
        saving: when runs write checkpoints.
        workers: threads of each run that prepare batches ahead.
        watcher: told how far things have come.
        pool: where the runs are made, see `run_planned`.

    Raises:
        ValueError: a setting is wrong, or the folder of a run is, before anything is trained.
        RunsFailed: runs failed, after all others are done.
        Stopped: SIGTERM or Ctrl-C came; the runs at hand have saved a checkpoint.
    """
    check_seeds(len(seeds))
    for name, values in (("methods", methods), ("seeds", seeds)):
        if not values or len(set(values)) < len(values):
            raise ValueError(f"{name} must be given, each once, got {list(values)}")
    planner = Planner(task_of=task_of, data_root=data_root, device=device, saving=saving or Saving(), workers=workers)
    planned = [
        planner.plan(replace(settings, method=method, seed=seed), out / run_folder_name(method, seed))
        for seed in seeds
        for method in methods
    ]
    _check_distinct(methods, planned[: len(methods)])
    run_planned(planned, jobs, watcher, pool)
    return [one.folder for one in planned]


def _check_distinct(methods: Sequence[str], planned: Sequence[PlannedRun]) -> None:
    """Two ways to write one method would give two runs of it per seed, and no table."""
    seen: dict[str, str] = {}
    for method, one in zip(methods, planned, strict=True):
        resolved = json.dumps([one.config.method, one.config.method_options], sort_keys=True)
        if resolved in seen:
            raise ValueError(f"methods must differ, got {seen[resolved]!r} and {method!r}, which are the same")
        seen[resolved] = method
