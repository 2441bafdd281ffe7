"""The command ``isda tune``."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from isda.lab.cli.compare import method_folders
from isda.lab.cli.executors import command_execution
from isda.lab.cli.report import print_tables, write_page
from isda.lab.cli.runtime_options import JsonFile, RuntimeOptions
from isda.lab.cli.tasks import CommandTask, command_task
from isda.lab.engine.executors.runs import ExecutorOptions, PlannedRun, RunsFailed
from isda.lab.engine.settings import RunSettings

SEED_OFFSET = 100
"""Between the seeds of final runs and those of the search."""


@dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """What to choose, and how."""

    methods: tuple[str, ...] | None = None
    """Methods to tune, each as in --method; those without anything to choose are trained and
    compared, too. By default the one of --method."""
    search: Annotated[tuple[tuple[str, ...], ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="NAME=VALUES")] = ()
    """What to choose: NAME=0.1,0.5,1. NAME is an option of a method, or of METHOD:NAME alone, or else a setting of the
    run such as lr. By default the published grids of the methods."""
    trials: int | None = None
    """Trials of each method, evenly spaced in its grid; all by default."""
    choose_seeds: int = 1
    """Runs of each trial; their seeds differ from those of the final runs."""
    by: str | None = None
    """The held-out figure to choose by, such as nll; by default the figure that methods are compared by."""
    seeds: int = 5
    """Number of paired final runs of each method on all training data, at most 1000; their seeds count up from
    --seed."""
    retrain: bool = True
    """Train the final runs."""
    out: Path | None = None
    """The folder for all runs; by default runs/tune-DATA."""
    report: Path | None = None
    """The HTML page; by default report.html in that folder."""
    json: JsonFile = None


def command_for(words: Sequence[str], fixed: CommandTask | None = None) -> Callable[..., None]:
    """The command with the settings of the fixed task, or of the task that the words select."""
    selected = fixed or command_task(words)

    def tune(
        settings: tyro.conf.OmitArgPrefixes[selected.settings_type],  # type: ignore[name-defined]
        runtime: tyro.conf.OmitArgPrefixes[RuntimeOptions],
        tuning: tyro.conf.OmitArgPrefixes[TuneOptions],
        execution: tyro.conf.OmitArgPrefixes[ExecutorOptions],
        *,
        task: str | None = None,
    ) -> None:
        """Choose settings of methods on held-out data, then train with the choice on all data and compare.

        ``isda tune --data cifar10 --methods cross-entropy isda --jobs 2``

        The search holds out 5,000 training images (a fifth of a small set), or 25% of the labels of a semi-supervised
        run, and never uses the test set. Finished runs are not repeated, interrupted ones are resumed: the same command
        makes the same choice.

        Args:
            settings: what all runs share.
            runtime: data folder, device and checkpoints of each run.
            tuning: what to choose, and how.
            execution: where the runs are executed.
            task: package.module:Class of a task of your own, whose settings are then the options.
        """
        _tune(selected, settings, runtime, tuning, execution)

    return selected.command(tune)


def _tune(
    selected: CommandTask,
    settings: RunSettings,
    runtime: RuntimeOptions,
    tuning: TuneOptions,
    execution: ExecutorOptions,
) -> None:
    from isda.lab.cli.output import check_replaceable
    from isda.lab.engine.callbacks.progress import make_watcher
    from isda.lab.engine.comparison import Planner, run_planned, seed_range
    from isda.lab.engine.run_folder import folder_lock
    from isda.lab.engine.search import SearchOptions, final_runs, make_candidates, run_search

    runtime.set_threads()
    if tuning.methods is not None and settings.method is not None:
        raise ValueError("tune takes --method or --methods, not both")
    methods = tuning.methods if tuning.methods is not None else (settings.method or "isda",)
    planner = Planner(
        task_of=selected.task_of,
        data_root=runtime.data_root,
        device=runtime.device,
        saving=runtime.saving(),
        workers=runtime.workers,
    )
    first = settings.seed or 0
    final_seeds = seed_range(tuning.seeds, first)
    options = SearchOptions(
        trials=tuning.trials,
        seeds=tuple(seed_range(tuning.choose_seeds, first + max(SEED_OFFSET, tuning.seeds), "choose_seeds")),
        by=tuning.by,
    )
    words = [word for group in tuning.search for word in group]
    candidates = make_candidates(settings, methods, words, options, planner)
    folder = tuning.out or selected.default_folder("tune", settings)
    page = tuning.report or folder / "report.html"
    check_replaceable(page, "isda report", "--report")
    failure: RunsFailed | None = None
    with command_execution(execution, runtime, folder) as opened, folder_lock(folder):
        with make_watcher(sys.stderr.isatty()) as watcher:
            search = run_search(candidates, folder, watcher, opened)
        if tuning.json != "-":
            print_tables([search])
        planned: list[PlannedRun] = []
        if tuning.retrain:
            planned = final_runs(candidates, search.methods, final_seeds, folder)
            with make_watcher(sys.stderr.isatty()) as watcher:
                try:
                    run_planned(planned, watcher=watcher, execution=opened)
                except RunsFailed as failed:
                    failure = failed
    _show(folder, planned, page, tuning.json)
    if failure is not None:
        raise failure
    diverged = [record.method for record in search.methods if record.searched and record.chosen is None]
    if diverged:
        raise ValueError(f"all trials of {' and '.join(diverged)} diverged; try smaller values")


def _show(folder: Path, planned: Sequence[PlannedRun], page: Path, json: str | None) -> None:
    """Write the page of the search and the final runs, and print the comparison."""
    from isda.lab.cli.output import show
    from isda.lab.engine.run_folder import RunFolder
    from isda.lab.engine.run_records import find_runs
    from isda.lab.engine.search import read_search

    started = [run.folder for run in planned if RunFolder(run.folder).started]
    runs = find_runs(method_folders(started)) if started else []
    search = read_search(folder)
    comparisons = write_page(runs, [search], [folder], page)
    record = {"search": search.as_json(), "comparisons": [comparison.as_json() for comparison in comparisons]}
    show(record, json, lambda: print_tables([], comparisons, page))
