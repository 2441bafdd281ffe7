"""The command ``isda compare``."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import tyro

from isda.lab.cli.console import print_next
from isda.lab.cli.executors import command_execution
from isda.lab.cli.report import report as write_report
from isda.lab.cli.runtime_options import JsonFile, RuntimeOptions
from isda.lab.cli.tasks import CommandTask, command_task
from isda.lab.engine.executors.runs import ExecutorOptions, RunsFailed
from isda.lab.engine.settings import RunSettings

MAX_NAMED_RUNS = 6
"""How many run folders a message names."""


def command_for(words: Sequence[str], fixed: CommandTask | None = None) -> Callable[..., None]:
    """The command with the settings of the fixed task, or of the task that the words select."""
    selected = fixed or command_task(words)
    default_methods = selected.compared or tyro.MISSING

    def compare(
        settings: tyro.conf.OmitArgPrefixes[selected.settings_type],  # type: ignore[name-defined]
        runtime: tyro.conf.OmitArgPrefixes[RuntimeOptions],
        execution: tyro.conf.OmitArgPrefixes[ExecutorOptions],
        *,
        task: str | None = None,
        methods: tuple[str, ...] = default_methods,
        seeds: int = 3 if fixed else 5,
        plan: float | None = None,
        out: Path | None = None,
        report: Path | None = None,
        json: JsonFile = None,
    ) -> None:
        """Train several methods with several seeds on one data set, and compare their errors.

        ``isda compare --data cifar10 --labels 4000 --scale small --methods cross-entropy isda:lambda_0=1 --seeds 5``

        For one seed all methods see the same images, initial weights, batches and augmentation, and differences are
        taken seed by seed. Finished runs are not repeated, interrupted ones are resumed.

        Args:
            settings: what all runs share.
            runtime: data folder, device and checkpoints of each run.
            execution: where the runs are executed.
            task: package.module:Class of a task of your own, whose settings are then the options.
            methods: to compare, each as in --method; differences are to cross-entropy, or else to the first.
            seeds: number of paired runs of each method, at most 1000; their seeds count up from --seed.
            plan: say how many seeds tell a difference of this size, in the unit of the figure: --seeds 3 --plan 1 for
                one point of error.
            out: the folder for all runs; by default runs/compare-DATA.
            report: the HTML page; by default report.html in that folder.
            json: a file for the result as JSON.
        """
        from isda.lab.cli.output import check_replaceable
        from isda.lab.engine.comparison import seed_range
        from isda.lab.report.planning import check_planned

        if plan is not None:
            check_planned(plan)
        folder = out or selected.default_folder("compare", settings)
        page = report or folder / "report.html"
        check_replaceable(page, "isda report", "--report")
        runs, failure = run_methods(
            "compare", selected, settings, runtime, execution, methods, seed_range(seeds, settings.seed), folder
        )
        if runs:
            _report_runs_not_shown(folder, runs)
            write_report(method_folders(runs), out=page, plan=plan, json=json)
            print_next("more --seeds narrow the intervals; isda tune chooses lambda_0 on held-out data")
        if failure is not None:
            raise failure

    return selected.command(compare)


def run_methods(
    command: str,
    selected: CommandTask,
    settings: RunSettings,
    runtime: RuntimeOptions,
    execution: ExecutorOptions,
    methods: Sequence[str],
    seeds: range,
    folder: Path,
) -> tuple[list[Path], RunsFailed | None]:
    """Train what is missing of methods x seeds; returns the folders of started runs, and the failure of others."""
    from isda.lab.cli.estimate import announce_duration
    from isda.lab.engine.callbacks.progress import make_watcher
    from isda.lab.engine.comparison import Planner, run_folder_name
    from isda.lab.engine.comparison import compare as run_comparison
    from isda.lab.engine.processes import join_processes
    from isda.lab.engine.run_folder import RunFolder

    if "method" in settings.given():
        raise ValueError(f"{command} takes --methods, not --method")
    runtime.set_threads()
    runs = [folder / run_folder_name(method, seed) for method in methods for seed in seeds]
    if runs and execution.on == "local":
        planner = Planner(task_of=selected.task_of, data_root=runtime.data_root)
        with join_processes(runtime.device) as processes:
            config = planner.resolve(replace(settings, method=methods[0], seed=seeds[0]))
            announce_duration(config, processes, sum(not RunFolder(run).started for run in runs))
    failure: RunsFailed | None = None
    with (
        command_execution(execution, runtime, folder) as opened,
        make_watcher(sys.stderr.isatty()) as watcher,
    ):
        try:
            run_comparison(
                settings,
                methods,
                seeds,
                folder,
                task_of=selected.task_of,
                data_root=runtime.data_root,
                device=runtime.device,
                saving=runtime.saving(),
                workers=runtime.workers,
                watcher=watcher,
                execution=opened,
            )
        except RunsFailed as failed:
            failure = failed
    return [run for run in runs if RunFolder(run).started], failure


def _report_runs_not_shown(folder: Path, shown: Sequence[Path]) -> None:
    """Name the runs of earlier comparisons in the same folder, which are not in the table."""
    from isda.lab.cli.output import print_escaped
    from isda.lab.engine.run_records import run_folders

    others = [run for run in run_folders(folder) if run not in shown]
    if others:
        names = ", ".join(run.relative_to(folder).as_posix() for run in others[:MAX_NAMED_RUNS])
        more = f" and {len(others) - MAX_NAMED_RUNS} more" if len(others) > MAX_NAMED_RUNS else ""
        count = f"{len(others)} other run{'s' if len(others) > 1 else ''}"
        print_escaped(f"isda: not shown: {count} in {folder}: {names}{more}", sys.stderr)


def method_folders(runs: Sequence[Path]) -> tuple[Path, ...]:
    """The run folders, with those of a method replaced by its folder if it holds no others."""
    from isda.lab.engine.run_records import run_folders

    methods = dict.fromkeys(run.parent for run in runs)
    whole = [method for method in methods if all(run in runs for run in run_folders(method))]
    return tuple(dict.fromkeys(run.parent if run.parent in whole else run for run in runs))
