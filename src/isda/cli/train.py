"""The command ``isda train``."""

import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import tyro

from isda._utils.text import escape_control_characters
from isda.cli.console import COMMAND_WORDS
from isda.cli.runtime_options import RuntimeOptions
from isda.cli.tasks import command_task
from isda.engine.callbacks import TensorBoard, load_hook
from isda.engine.callbacks.progress import make_progress
from isda.engine.config import RunConfig, check_types, read_config
from isda.engine.loop import train as run_training
from isda.engine.processes import Stopped, join_processes
from isda.engine.run_folder import RunFolder
from isda.engine.settings import RunSettings
from isda.engine.task import Task


def command_for(words: Sequence[str]) -> Callable[..., None]:
    """The command with the settings of the task that the words ask for."""
    chosen = command_task(words).task

    def train(
        settings: tyro.conf.OmitArgPrefixes[chosen.settings_type],  # type: ignore[name-defined]
        machine: tyro.conf.OmitArgPrefixes[RuntimeOptions],
        *,
        task: str | None = None,
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
            task: package.module:Class of a task of your own, whose settings are then the options (docs/extend.md).
            out: the run folder; by default runs/DATA-NETWORK-METHOD-seedN.
            resume: go on with the run in the folder, or start it if there is none.
            hook: package.module:Class of further loggers, see isda.engine.Hook.
        """
        train_run(chosen, settings, machine, out, resume, hook)

    return train


def train_run(
    task: Task, settings: RunSettings, machine: RuntimeOptions, out: Path | None, resume: bool, hook: tuple[str, ...]
) -> None:
    """Make a run of a task, or go on with one, and say how it ended; see `isda train`."""
    machine.use_threads()
    if resume and out is not None:
        settings = _resumed_settings(task, settings, RunFolder(out))
    data = task.load(settings.data, machine.data_root)
    config = task.resolve(settings, data)
    _warn_unused_shortcuts(settings, config)
    run = RunFolder(out or _default_folder(config), machine.keep)
    _check_folder(run, config, resume)
    if run.finished:
        run.check_finished()
        print(f"{run.path} is finished already")
        return
    hooks = [make_progress(sys.stderr.isatty()), TensorBoard(), *map(load_hook, hook)]
    with join_processes(machine.device) as processes:
        try:
            result = run_training(
                config,
                data,
                run.path,
                task=task,
                processes=processes,
                saving=machine.saving(),
                hooks=hooks,
                data_root=machine.data_root,
                workers=machine.workers,
            )
        except Stopped as stopped:
            if processes.first:
                print(f"isda: {stopped}; go on with the same command and --resume", file=sys.stderr)
            status = stopped.status
        else:
            status = 0
            if processes.first:
                print(escape_control_characters(_summary(config, result, run.path)))
    if status:
        sys.exit(status)


def _warn_unused_shortcuts(settings: RunSettings, config: RunConfig) -> None:
    """Warn of settings for an option of the method that the method does not have, or that its text overrides."""
    for name, given in settings.part_of("method_options").items():
        option, used = f"--{name.replace('_', '-')} {given}", config.method_options.get(name)
        if name not in config.method_options:
            warnings.warn(f"{option} has no effect on method {config.method}", stacklevel=2)
        elif used != given:
            warnings.warn(f"{option} has no effect beside {name}={used} in the method", stacklevel=2)


def _summary(config: RunConfig, result: dict[str, Any], folder: Path) -> str:
    figure = config.figures[0]
    value = f"{result[figure.name]:.{figure.digits}f}{'%' if figure.unit == '%' else ''}"
    return (
        f"{figure.title} {value} (mean of the last {config.average_last} of {config.epochs} epochs, "
        f"{config.scale} scale); {folder}"
    )


def _resumed_settings(task: Task, settings: RunSettings, run: RunFolder) -> RunSettings:
    """The settings of the run in a folder, with what the user says now on top: a contradiction is found later."""
    if not run.started:
        return settings
    stored = read_config(run.config_file).get("settings")
    if not isinstance(stored, dict):
        raise ValueError(f"{run.config_file} must say what was asked for, got {stored!r}")
    known = {f.name for f in fields(settings)}
    if not known >= set(stored):
        raise ValueError(
            f"{run.config_file} asks for {', '.join(sorted(set(stored) - known))}, which {type(settings).__module__} "
            "does not know"
        )
    check_types(type(settings), stored, run.config_file)
    asked = settings.given() | {name: getattr(settings, name) for name in known & _named_options(COMMAND_WORDS.get())}
    _check_user_code_named(task, run, stored | asked, asked)
    return replace(type(settings)(**stored), **asked)


def _named_options(words: Sequence[str]) -> set[str]:
    """The options that stand in the words of a command, also those given the value that they have by default.

    Example:
        >>> sorted(_named_options(["train", "--no-compile", "--batch-size=20", "--out", "runs/mine"]))
        ['batch_size', 'compile', 'no_compile', 'out']
    """
    names = {word[2:].partition("=")[0].replace("-", "_") for word in words if word.startswith("--")}
    return names | {name.removeprefix("no_") for name in names}


def _check_user_code_named(task: Task, run: RunFolder, stored: dict[str, Any], asked: dict[str, Any]) -> None:
    """Code is imported because a user names it, not because a file does."""
    method = str(stored.get("method", ""))
    if task.user_code(method) and asked.get("method") != method:
        raise ValueError(
            f"the run in {run.path} uses code of its own; to have it imported, name it again: --method {method}"
        )


def _default_folder(config: RunConfig) -> Path:
    name = f"{Path(config.data).stem}-{config.network}-{config.method}-seed{config.seed}"
    return Path("runs") / name.replace(":", "-")


def _check_folder(run: RunFolder, config: RunConfig, resume: bool) -> None:
    if not run.started:
        return
    if not resume:
        raise ValueError(f"{run.path} holds a run already; add --resume to go on with it, or choose another --out")
    run.check_resumable(config)
