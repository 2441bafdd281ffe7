"""The work of ``isda reproduce``: runs the trainings of tables and figures, writes pages, prints tables."""

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isda.cli.executors import command_executor
from isda.cli.output import plain_table, print_escaped, show, table_console
from isda.cli.runtime_options import RuntimeOptions
from isda.engine.callbacks.progress import RoundsWatcher, make_watcher
from isda.engine.comparison import seed_range
from isda.engine.executors import ExecutorOptions
from isda.engine.processes import join_processes
from isda.engine.run_folder import folder_lock
from isda.report.wording import intervals_text
from isda.reproduce.experiment import (
    Experiment,
    FigureContext,
    FigureExperiment,
    TableExperiment,
    matches_words,
    with_dependencies,
)
from isda.reproduce.page import GAIN_HEADS, cell_text, gain_rows, table_caption, write_table_page
from isda.reproduce.registry import experiment_names, find_experiments
from isda.reproduce.results import CellResult, Gain, cell_results, gains
from isda.reproduce.runner import ReproductionOptions, duration, experiment_progress, run_trainings
from isda.reproduce.training import SCALES, Scale, Training, TrainingOutcome
from isda.reproduce.workload import MachineSpeed, machine_speed

LIST = "list"


def reproduce(
    names: Sequence[str],
    runtime: RuntimeOptions,
    execution: ExecutorOptions,
    scale: str,
    only: tuple[str, ...],
    seeds: int | None,
    gpu: tuple[float, float],
    out: Path | None,
    html: Path | None,
    json: str | None,
    words: Sequence[str],
) -> None:
    """Reproduce or list tables and figures; the parameters are the options of `isda reproduce`, ``words`` its words."""
    size = SCALES[scale]
    count = len(seed_range(size.seeds if seeds is None else seeds))
    folder = out or Path("runs") / f"reproduce-{scale}"
    runtime.set_threads()
    if list(names) == [LIST]:
        _list(size, count, folder, runtime.data_root, gpu, json)
        return
    experiments = find_experiments(names)
    if html is not None and len(experiments) > 1:
        raise ValueError(f"html is the page of one table or figure, got {len(experiments)}")
    command = shlex.join(["isda", "reproduce", *words])
    request = _ReproduceRequest(experiments, size, only, count, folder, html, command)
    _reproduce(request, runtime, execution, json)


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
    if request.only and not any(trainings.values()):
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
    with (
        command_executor(execution, runtime, request.folder) as executor,
        folder_lock(request.folder),
        make_watcher(sys.stderr.isatty()) as watcher,
    ):
        outcomes = run_trainings(list(distinct.values()), options, RoundsWatcher(watcher), executor)
    records: list[dict[str, Any]] = []
    problems: list[str] = []
    printers: list[Callable[[], None]] = []
    with join_processes(runtime.device) as processes:
        context = FigureContext(
            folder=request.folder, scale=request.scale, data_root=runtime.data_root, device=processes.device
        )
        for experiment in request.experiments:
            record, printer = _result(experiment, trainings[experiment.name], outcomes, context, request)
            records.append(record)
            problems += record["problems"]
            printers.append(printer)

    def tables() -> None:
        for printer in printers:
            printer()

    show(records, json, tables)
    if problems:
        raise ValueError(f"{len(problems)} of {len(outcomes)} trainings and pictures failed: {'; '.join(problems)}")


def _result(
    experiment: Experiment,
    trainings: Sequence[Training],
    all_outcomes: Mapping[str, TrainingOutcome],
    context: FigureContext,
    request: _ReproduceRequest,
) -> tuple[dict[str, Any], Callable[[], None]]:
    """Write the page of an experiment; returns its record and a function that prints its tables."""
    outcomes = {training.name: all_outcomes[training.name] for training in with_dependencies(trainings)}
    problems = [f"{name}: {'; '.join(outcome.problems)}" for name, outcome in outcomes.items() if outcome.problems]
    results: list[CellResult] = []
    differences: list[Gain] = []
    pages: list[Path] = []
    if isinstance(experiment, TableExperiment):
        cells = experiment.selected(request.only)
        counted = experiment.counted(request.scale, context.device, request.only)
        all_results = cell_results(experiment, cells, outcomes, counted)
        results = [result for result in all_results if matches_words(request.only, result.row, result.column)]
        differences = gains(cells, outcomes, experiment.printed)
    elif isinstance(experiment, FigureExperiment):
        try:
            pages = experiment.draw(outcomes, context)
        except ValueError as error:
            problems.append(f"{experiment.name}: {error}")
    page = request.html or request.folder / f"{experiment.name}.html"
    write_table_page(
        page, experiment, request.scale, request.seeds, results, differences, outcomes, pages, request.command
    )
    record = {
        "name": experiment.name,
        "title": experiment.title,
        "scale": request.scale.name,
        "told": request.scale.description,
        "seeds": request.seeds,
        "cells": [result.record() for result in results],
        "differences": [gain.record() for gain in differences],
        "pages": [str(path) for path in (page, *pages)],
        "problems": problems,
    }
    return record, lambda: _print(experiment, request, results, differences, [page, *pages])


def _print(
    experiment: Experiment,
    request: _ReproduceRequest,
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
        console.print(plain_table(experiment.title, ["", *columns], rows, table_caption(request.scale, request.seeds)))
    if differences:
        caption = f"Paired by seed, ± half-width of Student's interval ({intervals_text(len(differences))})."
        console.print(plain_table("Differences", GAIN_HEADS, gain_rows(differences), caption))
    names = " and ".join(map(str, pages))
    print_escaped(f"{experiment.name}, scale {request.scale.name} ({request.scale.description}): {names}")


def _list(
    scale: Scale, seeds: int, folder: Path, root: Path | None, gpu: tuple[float, float], json: str | None
) -> None:
    for name, value in zip(("gpu_tflops", "gpu_bandwidth"), gpu, strict=True):
        if not 0 < value < float("inf"):
            raise ValueError(f"{name} must be a positive number, got {value}")
    here, on_gpu = machine_speed(), MachineSpeed(gpu[0] * 1e12, gpu[1] * 1e12, together=True)
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
    heads = ["", "cells", "runs", "missing: here", f"GPU, {gpu[0]:g} TFLOP/s, {gpu[1]:g} TB/s", "what it shows"]
    caption = (
        f"Scale {scale.name}: {scale.description}; {seeds} seeds. Times are those of the missing runs of each table: 6 "
        f"operations per multiply-add at {here.operations / 1e9:.0f} GFLOP/s plus the bytes of activations at "
        f"{here.bytes / 1e9:.1f} GB/s, as measured here on narrow networks; on a GPU the longer of the two. Evaluation "
        "is not included."
    )
    record = [
        row.record() | {"seconds_here": row.seconds(here), "seconds_gpu": row.seconds(on_gpu)} for row in progress
    ]
    table = plain_table("The paper's tables and figures", heads, rows, caption)
    show(record, json, lambda: table_console().print(table))
