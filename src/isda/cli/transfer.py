"""The command ``isda transfer``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import tyro

from isda.cli.executors import command_executor
from isda.cli.report import report as write_report
from isda.cli.runtime_options import JsonFile, RuntimeOptions
from isda.engine.callbacks.progress import make_watcher
from isda.engine.comparison import run_planned
from isda.engine.executors import ExecutorOptions, PlannedRun
from isda.engine.executors.worker import load_data_cached
from isda.engine.run_records import RunRecord, find_runs
from isda.engine.settings import RunSettings
from isda.engine.task import Task
from isda.tasks.transfer.fine_tuning import FineTuning, FineTuningSettings
from isda.tasks.transfer.linear_probe import LinearProbing, ProbeSettings

TransferMode = Literal["probe", "fine-tune"]


def transfer(
    runs: tyro.conf.Positional[tuple[Path, ...]],
    machine: tyro.conf.OmitArgPrefixes[RuntimeOptions],
    spread: tyro.conf.OmitArgPrefixes[ExecutorOptions],
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
    """Say what the features of finished runs are worth on other data: a linear probe, or fine-tuning.

    ``isda transfer runs/compare-cifar100 --data cifar10 svhn --how probe fine-tune``

    Each backbone is probed or fine-tuned in the same way, whatever method it was trained by; results go by the name of
    that method, and differences are taken seed by seed. What is there already is not repeated, what was interrupted
    goes on.

    Args:
        runs: run folders of classifiers, or folders that hold some at any depth.
        machine: where.
        spread: where the runs are made.
        data: the other data sets, as in `isda train`.
        how: "probe", a linear classifier on fixed features, its penalty chosen on a fifth of the training images;
            "fine-tune", all layers by cross-entropy.
        labels: use this many training images, equally many of each class; all of them by default.
        held_out: hold out this many training images and judge by them instead of the test set.
        epochs: of fine-tuning; 20 if left out.
        lr: initial learning rate of fine-tuning; 0.01 if left out.
        batch_size: of fine-tuning; the recipe's if left out.
        augment: of fine-tuning, as in `isda train`.
        out: the folder for the new runs; by default runs/transfer.
        report: the HTML page; by default report.html in that folder.
        json: also write the table to this file as JSON; "-" writes JSON to the standard output and no table.
    """
    machine.use_threads()
    for name, values in (("data", data), ("how", how)):
        if not values or len(set(values)) < len(values):
            raise ValueError(f"{name} must be given, each once, got {list(values)}")
    images: dict[str, Any] = {"labels": labels, "held_out": held_out}
    tuned: dict[str, Any] = {"epochs": epochs, "lr": lr, "batch_size": batch_size, "augment": augment}
    ways: dict[TransferMode, tuple[type[Task], RunSettings]] = {
        "probe": (LinearProbing, ProbeSettings(**images)),
        "fine-tune": (FineTuning, FineTuningSettings(**images, **tuned)),
    }
    useless = [key for key, value in tuned.items() if value is not None and "fine-tune" not in how]
    if useless:
        raise ValueError(f"{useless[0]} is a setting of fine-tuning; add --how fine-tune")
    folder = out or Path("runs") / "transfer"
    backbones = find_runs(runs)
    planned = list(_plan(backbones, data, [ways[one] for one in how], folder, machine))
    with command_executor(spread, machine, folder, len(planned)) as pool, make_watcher(sys.stderr.isatty()) as watcher:
        run_planned(planned, watcher=watcher, pool=pool)
    write_report(tuple(one.folder for one in planned), out=report or folder / "report.html", json=json)


def _plan(
    backbones: Sequence[RunRecord],
    data: Sequence[str],
    ways: Sequence[tuple[type[Task], RunSettings]],
    folder: Path,
    machine: RuntimeOptions,
) -> Iterator[PlannedRun]:
    names: dict[Path, Path] = {}
    for name in data:
        for kind, settings in ways:
            task = kind()
            loaded = load_data_cached(kind, name, machine.data_root)
            for run in backbones:
                asked = replace(settings, data=name, source=str(run.folder.absolute()))  # type: ignore[call-arg]
                config = task.resolve(asked, loaded)
                place = folder / task.name / config.data / run.folder.parent.name / run.folder.name
                if names.setdefault(place, run.folder) != run.folder:
                    raise ValueError(f"{names[place]} and {run.folder} have one name; choose folders that differ")
                yield PlannedRun(
                    task=kind,
                    config=config,
                    folder=place,
                    data=name,
                    data_root=machine.data_root,
                    device=machine.device,
                    saving=machine.saving(),
                    workers=machine.workers,
                )
