"""The command ``isda train``."""

from __future__ import annotations

import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from isda.train.machine import Machine
from isda.train.settings import Settings

if TYPE_CHECKING:
    from isda.data import DataSet
    from isda.train.config import Config
    from isda.train.run_folder import RunFolder

__all__ = ["train"]


def train(
    settings: tyro.conf.OmitArgPrefixes[Settings],
    machine: tyro.conf.OmitArgPrefixes[Machine],
    *,
    out: Path | None = None,
    resume: bool = False,
    hook: tuple[str, ...] = (),
) -> None:
    """Train a network and write a run folder: configuration, metrics, checkpoints, result and weights.

    ``isda train --data cifar10 --network resnet-20 --scale small`` trains for a tenth of the paper's epochs.
    ``isda train --out runs/mine --resume`` goes on with a run that was interrupted, with its own settings.
    ``torchrun --nproc-per-node 4 -m isda train ...`` trains with four processes.

    Args:
        settings: what to learn.
        machine: where.
        out: the run folder; by default runs/DATA-NETWORK-METHOD-seedN.
        resume: go on with the run in the folder, or start it if there is none.
        hook: package.module:Class of further loggers, see isda.train.Hook.
    """
    from isda.train.hooks import load_hook
    from isda.train.interruptions import Stopped
    from isda.train.loop import train as run_training
    from isda.train.processes import join_processes
    from isda.train.progress import progress_for
    from isda.train.run_folder import RunFolder
    from isda.train.tensorboard import TensorBoard

    machine.use_threads()
    if resume and out is not None:
        settings = _taken_up(settings, RunFolder(out))
    config, data = _configure(settings, machine.data_root)
    run = RunFolder(out or _default_folder(config), machine.keep)
    _check_folder(run, config, resume)
    if run.finished:
        print(f"{run.path} is finished already")
        return
    hooks = [progress_for(sys.stderr.isatty()), TensorBoard(), *map(load_hook, hook)]
    with join_processes(machine.device) as processes:
        try:
            result = run_training(
                config,
                data,
                run.path,
                processes=processes,
                saving=machine.saving(),
                hooks=hooks,
                data_root=machine.data_root,
            )
        except Stopped as stopped:
            if processes.first:
                print(f"isda: {stopped}; go on with `isda train --out {run.path} --resume`", file=sys.stderr)
            return
        if processes.first:
            print(
                f"{config.evaluated_on} error {result['error']:.2f}% (mean of the last {config.average_last} of "
                f"{config.epochs} epochs, {config.scale} scale); {run.path}"
            )


def _taken_up(settings: Settings, run: RunFolder) -> Settings:
    """The settings of the run in a folder, with what the user says now on top: a contradiction is found later."""
    from isda.train.config import Config

    if not run.started:
        return settings
    stored = Config.read(run.config_file).asked
    known = {f.name for f in fields(Settings)}
    if not known >= set(stored):
        raise ValueError(
            f"{run.config_file} asks for {', '.join(set(stored) - known)}, which this version does not know"
        )
    return replace(Settings(**stored), **settings.asked())


def _configure(settings: Settings, data_root: Path | None) -> tuple[Config, DataSet]:
    from isda.train.resolving import load_data, resolve

    data = load_data(settings, data_root)
    return resolve(settings, data), data


def _default_folder(config: Config) -> Path:
    name = f"{Path(config.data).stem}-{config.network}-{config.method}-seed{config.seed}"
    return Path("runs") / name.replace(":", "-")


def _check_folder(run: RunFolder, config: Config, resume: bool) -> None:
    from isda.train.run_folder import check_resumable

    if not run.started:
        return
    if not resume:
        raise ValueError(f"{run.path} holds a run already; add --resume to go on with it, or choose another --out")
    check_resumable(run, config)
