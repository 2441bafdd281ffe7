"""The command ``isda compare``."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import tyro

from isda._utils.text import escape_control_characters
from isda.cli.executors import command_executor
from isda.cli.report import report as write_report
from isda.cli.runtime_options import JsonFile, RuntimeOptions
from isda.cli.tasks import CommandTask, command_task
from isda.engine.callbacks.progress import make_watcher
from isda.engine.comparison import check_seeds, run_folder_name
from isda.engine.comparison import compare as run_all
from isda.engine.executors import ExecutorOptions, RunsFailed
from isda.engine.run_folder import RunFolder
from isda.engine.run_records import run_folders
from isda.engine.settings import RunSettings

MAX_NAMED_RUNS = 6
"""How many run folders are named."""


def command_for(words: Sequence[str]) -> Callable[..., None]:
    """The command with the settings of the task that the words ask for."""
    asked = command_task(words)
    known = asked.task.methods()
    default_methods = tuple(name for name in ("cross-entropy", "isda", "isda-tilted") if name in known) or tuple(known)

    def compare(
        settings: tyro.conf.OmitArgPrefixes[asked.task.settings_type],  # type: ignore[name-defined]
        machine: tyro.conf.OmitArgPrefixes[RuntimeOptions],
        spread: tyro.conf.OmitArgPrefixes[ExecutorOptions],
        *,
        task: str | None = None,
        methods: tuple[str, ...] = default_methods,
        seeds: int = 5,
        out: Path | None = None,
        report: Path | None = None,
        json: JsonFile = None,
    ) -> None:
        """Train several methods with several seeds on one data set, and compare their errors.

        ``isda compare --data cifar10 --labels 4000 --scale small --methods cross-entropy isda:lambda_0=1 --seeds 5``

        For one seed all methods see the same images, initial weights, batches and augmentation, and differences are
        taken seed by seed. Runs that are there already are not repeated, those that were interrupted go on.

        Args:
            settings: what all runs share.
            machine: where.
            spread: where the runs are made.
            task: package.module:Class of a task of your own, whose settings are then the options (docs/extend.md).
            methods: what to compare, each as in --method; differences are to cross-entropy, or else to the first.
            seeds: number of paired runs of each method, at most 1000; their seeds count up from --seed.
            out: the folder for all runs; by default runs/compare-DATA.
            report: the HTML page; by default report.html in that folder.
            json: also write the table to this file as JSON; "-" writes JSON to the standard output and no table.
        """
        compare_runs(asked, settings, machine, spread, methods, seeds, out, report, json)

    return compare


def compare_runs(
    asked: CommandTask,
    settings: RunSettings,
    machine: RuntimeOptions,
    spread: ExecutorOptions,
    methods: tuple[str, ...],
    seeds: int,
    out: Path | None,
    report: Path | None,
    json: str | None,
) -> None:
    """Make the runs of a comparison, those that are not there yet, and the report; see `isda compare`."""
    if "method" in settings.given():
        raise ValueError("compare takes --methods, not --method")
    folder = out or Path("runs") / f"compare-{Path(settings.data or 'digits').stem}"
    there, failure = make_runs(asked, settings, machine, spread, methods, seeds, folder)
    if there:
        _report_left_out_runs(folder, there)
        write_report(method_folders(there), out=report or folder / "report.html", json=json)
    if failure is not None:
        raise failure


def make_runs(
    asked: CommandTask,
    settings: RunSettings,
    machine: RuntimeOptions,
    spread: ExecutorOptions,
    methods: Sequence[str],
    seeds: int,
    folder: Path,
) -> tuple[list[Path], RunsFailed | None]:
    """Train what is missing of methods x seeds; returns the runs that are there, and what became of the others."""
    machine.use_threads()
    check_seeds(seeds)
    first = settings.seed or 0
    seeds_asked = range(first, first + seeds)
    runs = [folder / run_folder_name(method, seed) for method in methods for seed in seeds_asked]
    failure: RunsFailed | None = None
    with command_executor(spread, machine, folder, len(runs)) as pool, make_watcher(sys.stderr.isatty()) as watcher:
        try:
            run_all(
                settings,
                methods,
                seeds_asked,
                folder,
                task_of=asked.task_of,
                data_root=machine.data_root,
                device=machine.device,
                saving=machine.saving(),
                workers=machine.workers,
                watcher=watcher,
                pool=pool,
            )
        except RunsFailed as failed:
            failure = failed
    return [run for run in runs if RunFolder(run).started], failure


def _report_left_out_runs(folder: Path, shown: Sequence[Path]) -> None:
    """Runs of earlier comparisons in the same folder are not in the table."""
    others = [run for run in run_folders(folder) if run not in shown]
    if others:
        names = ", ".join(run.relative_to(folder).as_posix() for run in others[:MAX_NAMED_RUNS])
        more = f" and {len(others) - MAX_NAMED_RUNS} more" if len(others) > MAX_NAMED_RUNS else ""
        count = f"{len(others)} run{'s' if len(others) > 1 else ''}"
        print(
            escape_control_characters(f"isda: left out {count} in {folder} not asked for: {names}{more}"),
            file=sys.stderr,
        )


def method_folders(runs: Sequence[Path]) -> tuple[Path, ...]:
    """The folder of a method in place of its runs, where it holds no others: the page names what it was made from."""
    methods = dict.fromkeys(run.parent for run in runs)
    whole = [method for method in methods if all(run in runs for run in run_folders(method))]
    return tuple(dict.fromkeys(run.parent if run.parent in whole else run for run in runs))
