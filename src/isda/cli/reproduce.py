"""The command ``isda reproduce``."""

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from isda._utils.text import escape_control_characters
from isda.cli.executors import command_executor
from isda.cli.output import plain_table, show, table_console
from isda.cli.runtime_options import JsonFile, RuntimeOptions
from isda.engine.callbacks.progress import RoundsWatcher, make_watcher
from isda.engine.comparison import check_seeds
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
GPU_TFLOPS, GPU_BANDWIDTH = 150.0, 1.5


def command_for(words: Sequence[str]) -> Callable[..., None]:
    """The command, which says on its pages how it was called."""

    def reproduce(
        names: tyro.conf.Positional[tuple[str, ...]],
        machine: tyro.conf.OmitArgPrefixes[RuntimeOptions],
        spread: tyro.conf.OmitArgPrefixes[ExecutorOptions],
        *,
        scale: Literal["paper", "small", "smoke"] = "smoke",
        only: tuple[str, ...] = (),
        seeds: int | None = None,
        gpu_tflops: float = GPU_TFLOPS,
        gpu_bandwidth: float = GPU_BANDWIDTH,
        out: Path | None = None,
        html: Path | None = None,
        json: JsonFile = None,
    ) -> None:
        """Make tables and figures of the paper again, and print ours beside the paper's.

        ``isda reproduce table-2 --scale small --only CIFAR-10 --data-root data --jobs 2`` (docs/reproduce.md)
        ``isda reproduce list --scale paper`` says what there is, what is done, and how long the rest takes.

        Runs that are there already are not repeated, those that were interrupted go on. What fails is marked, the rest
        is made all the same, and the command ends with an error.

        Args:
            names: table-1 to table-8, table-11, table-12, figure-5 to figure-11, figure-13, figure-14; all; or list.
            machine: where.
            spread: where the runs are made. With --on slurm, submit and repeat the command until it prints the table:
                final runs follow from those on held-out data.
            scale: paper; small, an hour or two on a CPU; or smoke, minutes, to see that everything works.
            only: words that row and column must have, such as CIFAR-10 or ResNet-110; for figures, a training's name.
                Of words with commas between, such as ResNet-32,ResNet-110, any.
            seeds: of each training, at most 1000; by default 5, 3 and 2 by scale.
            gpu_tflops: of the GPU that list estimates for: 10^12 operations per second that large convolutions get.
            gpu_bandwidth: 10^12 bytes per second to and from its memory.
            out: the folder for all runs and pages, which tables share; by default runs/reproduce-SCALE.
            html: the page; by default NAME.html in that folder.
            json: also write the numbers to this file as JSON; "-" writes JSON to the standard output and no table.
        """
        size = SCALES[scale]
        many = size.seeds if seeds is None else seeds
        check_seeds(many)
        folder = out or Path("runs") / f"reproduce-{scale}"
        if list(names) == [LIST]:
            machine.use_threads()
            _list(size, many, folder, machine.data_root, (gpu_tflops, gpu_bandwidth), json)
            return
        asked = find_experiments(names)
        if html is not None and len(asked) > 1:
            raise ValueError(f"html is the page of one table or figure, got {len(asked)}")
        command = shlex.join(["isda", "reproduce", *words])
        _reproduce(_ReproduceRequest(asked, size, only, many, folder, html, command), machine, spread, json)

    return reproduce


@dataclass(frozen=True)
class _ReproduceRequest:
    """What to make."""

    experiments: list[Experiment]
    scale: Scale
    only: tuple[str, ...]
    seeds: int
    folder: Path
    html: Path | None
    command: str


def _reproduce(asked: _ReproduceRequest, machine: RuntimeOptions, spread: ExecutorOptions, json: str | None) -> None:
    machine.use_threads()
    trainings = {one.name: one.trainings(asked.only) for one in asked.experiments}
    if asked.only and not any(trainings.values()):
        raise ValueError(f"only must leave something, got {' '.join(asked.only)}, which no cell or training has")
    making = ReproductionOptions(
        scale=asked.scale,
        seeds=range(asked.seeds),
        folder=asked.folder,
        data_root=machine.data_root,
        device=machine.device,
        saving=machine.saving(),
        workers=machine.workers,
    )
    wanted = list({one.name: one for some in trainings.values() for one in some}.values())
    with (
        command_executor(spread, machine, asked.folder) as pool,
        folder_lock(asked.folder),
        make_watcher(sys.stderr.isatty()) as watcher,
    ):
        made = run_trainings(wanted, making, RoundsWatcher(watcher), pool)
    records: list[dict[str, Any]] = []
    problems: list[str] = []
    shown: list[Callable[[], None]] = []
    with join_processes(machine.device) as processes:
        looking = FigureContext(
            folder=asked.folder, scale=asked.scale, data_root=machine.data_root, device=processes.device
        )
        for one in asked.experiments:
            record, printed, told = _shown(one, trainings[one.name], made, looking, asked)
            records.append(record)
            problems += told
            shown.append(printed)

    def tables() -> None:
        for printed in shown:
            printed()

    show(records, json, tables)
    if problems:
        raise ValueError(f"{len(problems)} of {len(made)} trainings and pictures failed: {'; '.join(problems)}")


def _shown(
    one: Experiment,
    trainings: Sequence[Training],
    made: Mapping[str, TrainingOutcome],
    looking: FigureContext,
    asked: _ReproduceRequest,
) -> tuple[dict[str, Any], Callable[[], None], list[str]]:
    """The record of an experiment, what prints it, and what went wrong; its page is written."""
    own = {name: made[name] for name in (training.name for training in with_dependencies(trainings))}
    problems = [f"{name}: {'; '.join(outcome.problems)}" for name, outcome in own.items() if outcome.problems]
    found: list[CellResult] = []
    differences: list[Gain] = []
    pages: list[Path] = []
    if isinstance(one, TableExperiment):
        cells = one.selected(asked.only)
        counted = one.counted(asked.scale, looking.device, asked.only)
        everything = cell_results(one, cells, own, counted)
        found = [answer for answer in everything if matches_words(asked.only, answer.row, answer.column)]
        differences = gains(cells, own, one.printed)
    elif isinstance(one, FigureExperiment):
        try:
            pages = one.draw(own, looking)
        except ValueError as error:
            problems.append(f"{one.name}: {error}")
    page = asked.html or asked.folder / f"{one.name}.html"
    write_table_page(page, one, asked.scale, asked.seeds, found, differences, own, pages, asked.command)
    record = {
        "name": one.name,
        "title": one.title,
        "scale": asked.scale.name,
        "told": asked.scale.description,
        "seeds": asked.seeds,
        "cells": [answer.record() for answer in found],
        "differences": [gain.record() for gain in differences],
        "pages": [str(path) for path in (page, *pages)],
        "problems": problems,
    }
    return record, lambda: _print(one, asked, found, differences, [page, *pages]), problems


def _print(
    one: Experiment,
    asked: _ReproduceRequest,
    found: Sequence[CellResult],
    differences: Sequence[Gain],
    pages: Sequence[Path],
) -> None:
    console = table_console()
    if found:
        columns = list(dict.fromkeys(answer.column for answer in found))
        known = {(answer.row, answer.column): "\n".join(cell_text(answer)) for answer in found}
        rows = [
            [row, *(known.get((row, column), "") for column in columns)]
            for row in dict.fromkeys(answer.row for answer in found)
        ]
        console.print(plain_table(one.title, ["", *columns], rows, table_caption(asked.scale, asked.seeds)))
    if differences:
        told = f"On the same seeds, ± half of Student's interval ({intervals_text(len(differences))})."
        console.print(plain_table("Differences", GAIN_HEADS, gain_rows(differences), told))
    names = " and ".join(map(str, pages))
    print(escape_control_characters(f"{one.name}, scale {asked.scale.name} ({asked.scale.description}): {names}"))


def _list(
    scale: Scale, seeds: int, folder: Path, root: Path | None, gpu: tuple[float, float], json: str | None
) -> None:
    for name, value in zip(("gpu_tflops", "gpu_bandwidth"), gpu, strict=True):
        if not 0 < value < float("inf"):
            raise ValueError(f"{name} must be a positive number, got {value}")
    here, there = machine_speed(), MachineSpeed(gpu[0] * 1e12, gpu[1] * 1e12, together=True)
    found = [experiment_progress(one, scale, seeds, folder, root) for one in find_experiments(experiment_names())]
    rows = [
        [
            one.name,
            f"{one.cells_done}/{one.cells}",
            f"{one.runs_done}/{one.runs}",
            duration(one.seconds(here)),
            duration(one.seconds(there)),
            one.title,
        ]
        for one in found
    ]
    heads = ["", "cells", "runs", "missing: here", f"GPU, {gpu[0]:g} TFLOP/s, {gpu[1]:g} TB/s", "what it shows"]
    told = (
        f"Scale {scale.name}: {scale.description}; {seeds} seeds. Times are of the missing runs, each table by itself: "
        f"6 operations per multiply-add at {here.operations / 1e9:.0f} GFLOP/s and the bytes of activations "
        f"at {here.bytes / 1e9:.1f} GB/s, as measured here on narrow networks, one after the other; on a GPU whichever "
        "takes longer. Evaluation comes on top."
    )
    record = [one.record() | {"seconds_here": one.seconds(here), "seconds_gpu": one.seconds(there)} for one in found]
    show(record, json, lambda: table_console().print(plain_table("The paper's tables and figures", heads, rows, told)))
