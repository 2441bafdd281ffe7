"""The command ``isda tune``."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from isda.cli.compare import method_folders
from isda.cli.executors import command_executor
from isda.cli.output import show
from isda.cli.report import print_tables, write_page
from isda.cli.runtime_options import JsonFile, RuntimeOptions
from isda.cli.tasks import CommandTask, command_task
from isda.engine.callbacks.progress import RoundsWatcher, make_watcher
from isda.engine.comparison import Planner, check_seeds, run_planned
from isda.engine.executors import ExecutorOptions, PlannedRun, RunsFailed
from isda.engine.run_folder import RunFolder, folder_lock
from isda.engine.run_records import find_runs
from isda.engine.settings import RunSettings
from isda.engine.tuning.method_search import run_search as search_all
from isda.engine.tuning.records import read_search
from isda.engine.tuning.request import SearchOptions, final_runs, make_candidates

SEED_OFFSET = 100
"""Between the seeds of final runs and those of the search."""


@dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """What to choose, and how."""

    methods: tuple[str, ...] | None = None
    """What to tune, each as in --method, with as many trials each; those without anything to choose are trained and
    compared all the same. By default the one of --method."""
    search: Annotated[tuple[tuple[str, ...], ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="NAME=VALUES")] = ()
    """What to choose: NAME=0.1,0.5,1, or NAME=0.01..10 for the samplers tpe and random. NAME is an option of a method,
    or of METHOD:NAME alone, or else a setting of the run such as lr. The methods' published grids if left out."""
    sampler: Literal["grid", "tpe", "random"] = "grid"
    """grid: every combination; tpe: tree-structured Parzen estimators; random."""
    trials: int | None = None
    """Trials of each method; by default as many as the largest grid takes, 20 for tpe and random."""
    widen: int = 3
    """Steps that a grid is taken further when its edge wins."""
    choose_seeds: int = 1
    """Runs of each trial; their seeds are others than those of the final runs."""
    by: str | None = None
    """The held-out figure to choose by, such as nll; by default what methods are compared by."""
    seeds: int = 5
    """Number of paired final runs of each method on all training data, at most 1000; their seeds count up from
    --seed."""
    retrain: bool = True
    """Make the final runs."""
    out: Path | None = None
    """The folder for all runs; by default runs/tune-DATA."""
    report: Path | None = None
    """The HTML page; by default report.html in that folder."""
    json: JsonFile = None
    """Also write search and comparison to this file as JSON; "-" writes JSON to the standard output and no table."""

    def how(self, seed: int) -> SearchOptions:
        """How to search, where final runs begin with a seed."""
        for name in ("choose_seeds", "seeds"):
            check_seeds(getattr(self, name), name)
        first = seed + max(SEED_OFFSET, self.seeds)
        return SearchOptions(
            sampler=self.sampler,
            trials=self.trials,
            widen=self.widen,
            seeds=tuple(range(first, first + self.choose_seeds)),
            by=self.by,
            seed=seed,
        )


def command_for(words: Sequence[str]) -> Callable[..., None]:
    """The command with the settings of the task that the words ask for."""
    asked = command_task(words)

    def tune(
        settings: tyro.conf.OmitArgPrefixes[asked.task.settings_type],  # type: ignore[name-defined]
        machine: tyro.conf.OmitArgPrefixes[RuntimeOptions],
        tuning: tyro.conf.OmitArgPrefixes[TuneOptions],
        spread: tyro.conf.OmitArgPrefixes[ExecutorOptions],
        *,
        task: str | None = None,
    ) -> None:
        """Choose settings of methods on held-out data, then train with the choice on all data and compare.

        ``isda tune --data cifar10 --methods cross-entropy isda --jobs 2`` (docs/tuning.md)

        The search holds out 5,000 training images (a fifth of a small set), or 25% of the labels of a semi-supervised
        run, and never looks at the test set. Runs that are there already are not repeated, those that were interrupted
        go on: the same command makes the same choice.

        Args:
            settings: what all runs share.
            machine: where.
            tuning: what to choose, and how.
            spread: where the runs are made.
            task: package.module:Class of a task of your own, whose settings are then the options (docs/extend.md).
        """
        tune_runs(asked, settings, machine, tuning, spread)

    return tune


def tune_runs(
    asked: CommandTask, settings: RunSettings, machine: RuntimeOptions, tuning: TuneOptions, spread: ExecutorOptions
) -> None:
    """Search, and make the final runs and the page; see `isda tune`."""
    machine.use_threads()
    if tuning.methods is not None and settings.method is not None:
        raise ValueError("tune takes --method or --methods, not both")
    methods = tuning.methods if tuning.methods is not None else (settings.method or "isda",)
    planner = Planner(
        task_of=asked.task_of,
        data_root=machine.data_root,
        device=machine.device,
        saving=machine.saving(),
        workers=machine.workers,
    )
    first = settings.seed or 0
    words = [word for some in tuning.search for word in some]
    candidates = make_candidates(settings, methods, words, tuning.how(first), planner)
    folder = tuning.out or Path("runs") / f"tune-{Path(settings.data or 'digits').stem}"
    failure: RunsFailed | None = None
    with command_executor(spread, machine, folder, rounds=True) as pool, folder_lock(folder):
        with make_watcher(sys.stderr.isatty()) as watcher:
            found = search_all(candidates, folder, RoundsWatcher(watcher), pool)
        if tuning.json != "-":
            print_tables([found])
        planned: list[PlannedRun] = []
        if tuning.retrain:
            planned = final_runs(candidates, found.methods, range(first, first + tuning.seeds), folder)
            with make_watcher(sys.stderr.isatty()) as watcher:
                try:
                    run_planned(planned, watcher=watcher, pool=pool)
                except RunsFailed as failed:
                    failure = failed
    _show(folder, planned, tuning)
    if failure is not None:
        raise failure
    lost = [one.method for one in found.methods if one.searched and one.chosen is None]
    if lost:
        raise ValueError(f"no trial of {' and '.join(lost)} came to its end: all diverged; try smaller values")


def _show(folder: Path, planned: Sequence[PlannedRun], tuning: TuneOptions) -> None:
    """Write the page of search and final runs, and print what has not been printed yet."""
    there = [run.folder for run in planned if RunFolder(run.folder).started]
    runs = find_runs(method_folders(there)) if there else []
    search = read_search(folder)
    page = tuning.report or folder / "report.html"
    comparisons = write_page(runs, [search], [folder], page)
    record = {"search": search.as_json(), "comparisons": [comparison.as_json() for comparison in comparisons]}
    show(record, tuning.json, lambda: print_tables([], comparisons, page))
