"""The work of ``isda reproduce``: runs the trainings of tables and figures, writes pages, prints tables."""

import shlex
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from isda.lab.cli.executors import command_execution
from isda.lab.cli.output import check_replaceable, plain_table, print_escaped, show, table_console
from isda.lab.cli.runtime_options import RuntimeOptions
from isda.lab.engine.callbacks.progress import RoundsWatcher, make_watcher
from isda.lab.engine.comparison import seed_range
from isda.lab.engine.executors.runs import ExecutorOptions
from isda.lab.engine.processes import join_processes
from isda.lab.engine.run_folder import folder_lock
from isda.lab.reproduce.experiment import (
    Experiment,
    FigureContext,
    FigureExperiment,
    TableExperiment,
    matches_words,
    with_dependencies,
)
from isda.lab.reproduce.page import GAIN_HEADS, cell_text, gain_rows, table_caption, write_table_page
from isda.lab.reproduce.registry import experiment_names, find_experiments
from isda.lab.reproduce.results import CellResult, Gain, cell_results, gains, intervals_text
from isda.lab.reproduce.runner import ReproductionOptions, duration, experiment_progress, run_trainings
from isda.lab.reproduce.training import SCALES, Scale, Training, TrainingOutcome
from isda.lab.reproduce.workload import PRECISION, MachineSpeed, machine_speed

LIST = "list"


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions:
    """The options of `isda reproduce`, see `isda.lab.cli.reproduce_command`."""

    scale: str
    only: tuple[str, ...]
    seeds: int | None
    changes: Mapping[str, Any]
    """Settings that replace those of all trainings."""
    gpu: tuple[float, float]
    """10^12 operations and bytes per second of the GPU that list estimates for."""
    biggan: str | None
    out: Path | None
    html: Path | None
    json: str | None
    words: Sequence[str]
    """The words of the command line."""


def reproduce(
    names: Sequence[str], runtime: RuntimeOptions, execution: ExecutorOptions, options: ReproduceOptions
) -> None:
    """Reproduce or list tables and figures."""
    size = replace(SCALES[options.scale], changes=dict(options.changes))
    count = len(seed_range(size.seeds if options.seeds is None else options.seeds))
    folder = options.out or Path("runs") / f"reproduce-{options.scale}"
    execution.check()
    runtime.set_threads()
    if list(names) == [LIST]:
        _list(size, count, folder, runtime.data_root, options.gpu, execution.processes_per_run, options.json)
        return
    experiments = find_experiments(names)
    if options.biggan is not None:
        experiments = [experiment.with_biggan(options.biggan) for experiment in experiments]
    if options.html is not None and len(experiments) > 1:
        raise ValueError(f"html is the page of one table or figure, got {len(experiments)}")
    if options.html is not None:
        check_replaceable(options.html, "isda reproduce", "--html")
    command = shlex.join(["isda", "reproduce", *options.words])
    request = _ReproduceRequest(experiments, size, options.only, count, folder, options.html, command)
    _reproduce(request, runtime, execution, options.json)


@dataclass(frozen=True)
class _ReproduceRequest:
    """What to reproduce."""

    experiments: list[Experiment]
    scale: Scale
    only: tuple[str, ...]
    seeds: int
    folder: Path
    html: Path | None
    command: str


def _reproduce(
    request: _ReproduceRequest, runtime: RuntimeOptions, execution: ExecutorOptions, json: str | None
) -> None:
    trainings = {experiment.name: experiment.trainings(request.only) for experiment in request.experiments}
    if not any(experiment.matches(request.only) for experiment in request.experiments):
        raise ValueError(f"only must match a cell or a training, got {' '.join(request.only)}, which matches none")
    options = ReproductionOptions(
        scale=request.scale,
        seeds=range(request.seeds),
        folder=request.folder,
        data_root=runtime.data_root,
        device=runtime.device,
        saving=runtime.saving(),
        workers=runtime.workers,
    )
    distinct = {training.name: training for group in trainings.values() for training in group}
    _check_changes(request.scale, distinct.values())
    with (
        command_execution(execution, runtime, request.folder) as opened,
        folder_lock(request.folder),
        make_watcher(sys.stderr.isatty()) as watcher,
    ):
        outcomes = run_trainings(list(distinct.values()), options, RoundsWatcher(watcher), opened)
    own = {
        name: {training.name: outcomes[training.name] for training in with_dependencies(group)}
        for name, group in trainings.items()
    }
    results: dict[str, _Result] = {}
    with join_processes(runtime.device) as processes:
        context = FigureContext(
            folder=request.folder, scale=request.scale, data_root=runtime.data_root, device=processes.device
        )
        # Every page is written before anything is drawn: what happens to a picture takes no other result with it.
        for experiment in request.experiments:
            results[experiment.name] = _result(experiment, own[experiment.name], context, request)
        for experiment in request.experiments:
            if isinstance(experiment, FigureExperiment):
                drawn = _draw(experiment, own[experiment.name], context)
                results[experiment.name] = _result(experiment, own[experiment.name], context, request, drawn)
    records = [record for record, _ in results.values()]
    problems = [problem for record in records for problem in record["problems"]]

    def tables() -> None:
        for _, printer in results.values():
            printer()

    show(records, json, tables)
    if problems:
        raise ValueError(f"{len(problems)} of {len(outcomes)} trainings and pictures failed: {'; '.join(problems)}")


def _check_changes(scale: Scale, trainings: Collection[Training]) -> None:
    """Raise a ValueError if the trainings do not support what the command changes."""
    for name, value in scale.changes.items():
        if not any(hasattr(training.settings, name) for training in trainings):
            raise ValueError(f"{name} is for semi-supervised trainings, got {value} for tables and figures without one")
    precision = scale.changes.get("precision")
    for training in with_dependencies(trainings) if precision is not None else ():
        if precision not in training.settings.precisions:
            known = ", ".join(training.settings.precisions)
            raise ValueError(f"precision must be one of {known} for {training.name}, got {precision}")


class _Pictures(NamedTuple):
    """The pages with the pictures of a figure, or why there are none."""

    pages: list[Path]
    problem: str | None = None


def _draw(figure: FigureExperiment, outcomes: Mapping[str, TrainingOutcome], context: FigureContext) -> _Pictures:
    """Draw a figure; errors of any kind become its problem, so that the next figure is drawn."""
    try:
        return _Pictures(figure.draw(outcomes, context))
    except Exception as error:
        return _Pictures([], f"{figure.name}: {error}")


_Result = tuple[dict[str, Any], Callable[[], None]]
"""The record of an experiment, and a function that prints its tables."""


def _result(
    experiment: Experiment,
    outcomes: Mapping[str, TrainingOutcome],
    context: FigureContext,
    request: _ReproduceRequest,
    drawn: _Pictures | None = None,
) -> _Result:
    """Write the page of an experiment, with the pictures that have been drawn."""
    problems = [f"{name}: {'; '.join(outcome.problems)}" for name, outcome in outcomes.items() if outcome.problems]
    results: list[CellResult] = []
    differences: list[Gain] = []
    pages, problem = ([], None) if drawn is None else drawn
    problems += [problem] if problem else []
    if isinstance(experiment, TableExperiment):
        cells = experiment.selected(request.only)
        counted = experiment.counted(request.scale, context.device, request.only)
        all_results = cell_results(experiment, cells, outcomes, counted)
        results = [result for result in all_results if matches_words(request.only, result.row, result.column)]
        differences = gains(experiment, cells, outcomes)
    page = request.html or request.folder / f"{experiment.name}.html"
    write_table_page(
        page, experiment, request.scale, request.seeds, results, differences, outcomes, pages, request.command, problem
    )
    record = {
        "name": experiment.name,
        "title": experiment.title,
        "scale": request.scale.name,
        "told": request.scale.description,
        "seeds": request.seeds if outcomes else 0,
        "cells": [result.record() for result in results],
        "differences": [gain.record() for gain in differences],
        "pages": [str(path) for path in (page, *pages)],
        "problems": problems,
    }
    return record, lambda: _print(experiment, request, bool(outcomes), results, differences, [page, *pages])


def _print(
    experiment: Experiment,
    request: _ReproduceRequest,
    trained: bool,
    results: Sequence[CellResult],
    differences: Sequence[Gain],
    pages: Sequence[Path],
) -> None:
    console = table_console()
    if results:
        columns = list(dict.fromkeys(result.column for result in results))
        cells = {(result.row, result.column): "\n".join(cell_text(result)) for result in results}
        rows = [
            [row, *(cells.get((row, column), "") for column in columns)]
            for row in dict.fromkeys(result.row for result in results)
        ]
        caption = table_caption(request.scale, request.seeds, trained)
        console.print(plain_table(experiment.title, ["", *columns], rows, caption))
    if differences:
        caption = f"Paired by seed, {intervals_text(differences)}."
        console.print(plain_table("Differences", GAIN_HEADS, gain_rows(differences), caption))
    names = " and ".join(map(str, pages))
    scale = f", scale {request.scale.name} ({request.scale.description})" if trained else ""
    print_escaped(f"{experiment.name}{scale}: {names}")


def _list(
    scale: Scale,
    seeds: int,
    folder: Path,
    root: Path | None,
    gpu: tuple[float, float],
    processes: int,
    json: str | None,
) -> None:
    for name, value in zip(("gpu_tflops", "gpu_bandwidth"), gpu, strict=True):
        if not 0 < value < float("inf"):
            raise ValueError(f"{name} must be a positive number, got {value}")
    precision = scale.changes.get("precision", PRECISION)
    here = machine_speed(precision)
    on_gpu = MachineSpeed(processes * gpu[0] * 1e12, processes * gpu[1] * 1e12, together=True)
    experiments = find_experiments(experiment_names())
    progress = [experiment_progress(experiment, scale, seeds, folder, root) for experiment in experiments]
    rows = [
        [
            row.name,
            f"{row.cells_done}/{row.cells}",
            f"{row.runs_done}/{row.runs}",
            duration(row.seconds(here)),
            duration(row.seconds(on_gpu)),
            row.title,
        ]
        for row in progress
    ]
    gpus = f"GPU, {gpu[0]:g} TFLOP/s, {gpu[1]:g} TB/s" if processes == 1 else f"{processes} such GPUs per run"
    heads = ["", "cells", "runs", "missing: here", gpus, "what it shows"]
    labelled = scale.changes.get("labelled_per_batch", "as many as unlabelled ones")
    parallel = "one process" if processes == 1 else f"{processes} processes, each with such a GPU that divides its time"
    caption = (
        f"Scale {scale.name}: {scale.description}; {seeds} seeds, and the runs on held-out data that choose settings. "
        f"Times are those of the missing runs of each table, one after the other, in {precision}, with {parallel} per "
        f"run and, in semi-supervised steps, labelled images: {labelled}. 6 operations per multiply-add at "
        f"{here.operations / 1e9:.0f} GFLOP/s plus the bytes of activations at {here.bytes / 1e9:.1f} GB/s, as "
        "measured here in one process on narrow networks; on a GPU the longer of the two. Evaluation is not included."
    )
    record = [
        row.record() | {"seconds_here": row.seconds(here), "seconds_gpu": row.seconds(on_gpu)} for row in progress
    ]
    table = plain_table("The paper's tables and figures", heads, rows, caption)
    show(record, json, lambda: table_console().print(table))
