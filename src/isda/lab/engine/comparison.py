"""Run many planned runs, and compare methods over seeds on one data set."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isda.lab.choices import check_range
from isda.lab.engine.config import RunConfig
from isda.lab.engine.executors.runs import (
    Execution,
    ExecutorOptions,
    PlannedRun,
    RunsFailed,
    Watcher,
    load_data_cached,
    open_execution,
    run_all,
)
from isda.lab.engine.options import canonical_method
from isda.lab.engine.run_folder import RunFolder
from isda.lab.engine.settings import RunSettings, Saving
from isda.lab.engine.task import Task

if TYPE_CHECKING:
    from isda.lab.report import Comparison


def run_planned(
    planned: Sequence[PlannedRun], jobs: int = 1, watcher: Watcher | None = None, execution: Execution | None = None
) -> None:
    """Execute every run that is not finished.

    Args:
        planned: the runs; all folders are checked before the first run starts.
        jobs: processes that train at the same time if no execution is given; they share the cores evenly.
        watcher: receives the progress.
        execution: how runs are executed, see `open_execution`; by default by processes of this machine.

    Raises:
        ValueError: a folder holds another run or a damaged one, before anything is trained.
        RunsFailed: runs failed, after all others are finished.
        Stopped: after SIGTERM or Ctrl-C; the current runs have saved a checkpoint.
    """
    for run in planned:
        folder = RunFolder(run.folder)
        if folder.started:
            folder.check_resumable(run.config)
    options = ExecutorOptions(jobs=max(1, min(jobs, len(planned))))
    with open_execution(options, Path()) if execution is None else nullcontext(execution) as opened:
        problems = run_all(planned, opened, watcher or Watcher())
    if problems:
        raise RunsFailed(problems, len(planned))


MAX_SEEDS = 1000
"""Of one command: planning more would take hours before the first run starts."""


def seed_range(count: int, first: int | None = None, name: str = "seeds") -> range:
    """``count`` seeds from ``first`` on, 0 by default; a ValueError unless ``count`` is from 1 to MAX_SEEDS."""
    check_range(name, count, 1, MAX_SEEDS)
    first = first or 0
    return range(first, first + count)


def run_folder_name(method: str, seed: int) -> Path:
    """The folder of a run in the folder of a comparison.

    Example:
        >>> run_folder_name("isda:lambda_0=2.0,memory=30", 3).as_posix()
        'isda-lambda_0=2-memory=30/seed-3'
    """
    return Path(re.sub(r"[^\w.=+-]+", "-", canonical_method(method))) / f"seed-{seed}"


@dataclass(frozen=True, kw_only=True)
class Planner:
    """Plans runs from settings; holds what the runs of a comparison share beside those."""

    task_of: Callable[[str], Task]
    """The task of a method string."""
    data_root: Path | None = None
    device: str = "auto"
    saving: Saving = field(default_factory=Saving)
    workers: int | None = None

    def task_and_data(self, settings: RunSettings) -> tuple[Task, Any]:
        """The task of settings with a method, and its data."""
        task = self.task_of(settings.method or "")
        return task, load_data_cached(type(task), settings.data, self.data_root)

    def resolve(self, settings: RunSettings) -> RunConfig:
        """The configuration of settings with a method; raises a ValueError if they are invalid."""
        task, data = self.task_and_data(settings)
        return task.resolve(settings, data)

    def plan(self, settings: RunSettings, folder: Path) -> PlannedRun:
        """The run of settings with a method."""
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
    execution: Execution | None = None,
) -> Comparison:
    """Train every method with every seed, and compare them. Finished runs are not repeated.

    For one seed all methods see the same images, initial weights, order of batches and augmentation: runs are paired.

    Args:
        settings: what the runs share; their method and seed are replaced.
        methods: as in `RunSettings.method`.
        seeds: of the runs.
        out: the folder for the run folders.
        task_of: maps a method string to its task.
        jobs: processes that train at the same time if no execution is given; they share the cores evenly.
        data_root: the folder of data sets.
        device: where to train, as in `join_processes`.
        saving: when runs write checkpoints.
        workers: threads of each run that prepare batches ahead.
        watcher: receives the progress.
        execution: how runs are executed, see `run_planned`.

    Raises:
        ValueError: a setting or the folder of a run is invalid, before anything is trained.
        RunsFailed: runs failed, after all others are finished.
        Stopped: after SIGTERM or Ctrl-C; the current runs have saved a checkpoint.
    """
    from isda.lab.report import load

    check_range("seeds", len(seeds), 1, MAX_SEEDS)
    for name, values in (("methods", methods), ("seeds", seeds)):
        if not values or len(set(values)) < len(values):
            raise ValueError(f"{name} must be given, each once, got {list(values)}")
    planner = Planner(task_of=task_of, data_root=data_root, device=device, saving=saving or Saving(), workers=workers)
    planned = [
        planner.plan(replace(settings, method=method, seed=seed), out / run_folder_name(method, seed))
        for seed in seeds
        for method in methods
    ]
    # The same method written in two ways would give two runs per seed.
    seen: dict[str, str] = {}
    for method, run in zip(methods, planned, strict=False):
        resolved = json.dumps([run.config.method, run.config.method_options], sort_keys=True)
        if resolved in seen:
            raise ValueError(f"methods must differ, got {seen[resolved]!r} and {method!r}, which are the same")
        seen[resolved] = method
    run_planned(planned, jobs, watcher, execution)
    return load(*(run.folder for run in planned))
