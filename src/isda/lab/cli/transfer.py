"""The command ``isda transfer``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from isda.lab.cli.executors import command_execution
from isda.lab.cli.report import report as write_report
from isda.lab.cli.runtime_options import JsonFile, RuntimeOptions
from isda.lab.engine.executors.runs import ExecutorOptions, PlannedRun
from isda.lab.engine.settings import RunSettings
from isda.lab.engine.task import Task

if TYPE_CHECKING:
    from isda.lab.engine.run_records import RunRecord

TransferMode = Literal["probe", "fine-tune"]


def transfer(
    runs: tyro.conf.Positional[tuple[Path, ...]],
    runtime: tyro.conf.OmitArgPrefixes[RuntimeOptions],
    execution: tyro.conf.OmitArgPrefixes[ExecutorOptions],
    *,
    data: tuple[str, ...],
    how: tuple[TransferMode, ...] = ("probe",),
    labels: int | None = None,
    held_out: int | None = None,
    epochs: int | None = None,
    lr: float | None = None,
    batch_size: int | None = None,
    augment: str | None = None,
    out: Path | None = None,
    report: Path | None = None,
    json: JsonFile = None,
) -> None:
    """Measure how well features transfer to other data: linear probe or fine-tuning of finished runs.

    ``isda transfer runs/compare-cifar100 --data cifar10 svhn --how probe fine-tune``

    Each backbone is probed or fine-tuned in the same way; results are listed under the method that trained it, and
    differences are taken seed by seed. Finished runs are not repeated, interrupted ones are resumed.

    Args:
        runs: run folders of classifiers, or folders that hold some at any depth.
        runtime: data folder, device and checkpoints of each run.
        execution: where the runs are executed.
        data: the other data sets, as in `isda train`.
        how: "probe", a linear classifier on fixed features, its penalty chosen on a fifth of the training images;
            "fine-tune", all layers by cross-entropy.
        labels: use this many training images, equally many of each class; all of them by default.
        held_out: hold out this many training images and evaluate on them instead of the test set.
        epochs: of fine-tuning; 20 by default.
        lr: initial learning rate of fine-tuning; 0.01 by default.
        batch_size: of fine-tuning; the recipe's by default.
        augment: of fine-tuning, as in `isda train`.
        out: the folder for the new runs; by default runs/transfer.
        report: the HTML page; by default report.html in that folder.
        json: a file for the result as JSON.
    """
    from isda.lab.cli.output import check_replaceable
    from isda.lab.engine.callbacks.progress import make_watcher
    from isda.lab.engine.comparison import run_planned
    from isda.lab.engine.run_records import find_runs
    from isda.lab.tasks.transfer.fine_tuning import FineTuning, FineTuningSettings
    from isda.lab.tasks.transfer.linear_probe import LinearProbing, ProbeSettings

    runtime.set_threads()
    for name, values in (("data", data), ("how", how)):
        if not values or len(set(values)) < len(values):
            raise ValueError(f"{name} must be given, each once, got {list(values)}")
    images: dict[str, Any] = {"labels": labels, "held_out": held_out}
    tuned: dict[str, Any] = {"epochs": epochs, "lr": lr, "batch_size": batch_size, "augment": augment}
    modes: dict[TransferMode, tuple[type[Task], RunSettings]] = {
        "probe": (LinearProbing, ProbeSettings(**images)),
        "fine-tune": (FineTuning, FineTuningSettings(**images, **tuned)),
    }
    unused = [key for key, value in tuned.items() if value is not None and "fine-tune" not in how]
    if unused:
        raise ValueError(f"{unused[0]} is a setting of fine-tuning; add --how fine-tune")
    folder = out or Path("runs") / "transfer"
    page = report or folder / "report.html"
    check_replaceable(page, "isda report", "--report")
    planned = list(_plan(find_runs(runs), data, [modes[mode] for mode in how], folder, runtime))
    with (
        command_execution(execution, runtime, folder) as opened,
        make_watcher(sys.stderr.isatty()) as watcher,
    ):
        run_planned(planned, watcher=watcher, execution=opened)
    write_report(tuple(run.folder for run in planned), out=page, json=json)


def _plan(
    backbones: Sequence[RunRecord],
    data: Sequence[str],
    modes: Sequence[tuple[type[Task], RunSettings]],
    folder: Path,
    runtime: RuntimeOptions,
) -> Iterator[PlannedRun]:
    from isda.lab.engine.executors.runs import load_data_cached

    names: dict[Path, Path] = {}
    for name in data:
        for kind, settings in modes:
            task = kind()
            loaded = load_data_cached(kind, name, runtime.data_root)
            for run in backbones:
                given = replace(settings, data=name, source=str(run.folder.absolute()))  # type: ignore[call-arg]
                config = task.resolve(given, loaded)
                target = folder / task.name / config.data / run.folder.parent.name / run.folder.name
                if names.setdefault(target, run.folder) != run.folder:
                    raise ValueError(f"{names[target]} and {run.folder} have the same name; rename one of them")
                yield PlannedRun(
                    task=kind,
                    config=config,
                    folder=target,
                    data=name,
                    data_root=runtime.data_root,
                    device=runtime.device,
                    saving=runtime.saving(),
                    workers=runtime.workers,
                )
