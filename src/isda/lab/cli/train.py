"""The command ``isda train``."""

import shlex
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from isda.lab.cli.console import COMMAND_WORDS, exit_stopped, print_next
from isda.lab.cli.runtime_options import RuntimeOptions
from isda.lab.cli.tasks import CommandTask, command_task
from isda.lab.engine.config import RunConfig, read_config
from isda.lab.engine.settings import RunSettings
from isda.lab.engine.task import Task

if TYPE_CHECKING:
    from isda.lab.engine.run_folder import RunFolder


def command_for(words: Sequence[str], fixed: CommandTask | None = None) -> Callable[..., None]:
    """The command with the settings of the fixed task, or of the task that the words select."""
    selected = fixed or command_task(words)

    def train(
        settings: tyro.conf.OmitArgPrefixes[selected.settings_type],  # type: ignore[name-defined]
        runtime: tyro.conf.OmitArgPrefixes[RuntimeOptions],
        *,
        task: str | None = None,
        out: Path | None = None,
        resume: bool = False,
        hook: tuple[str, ...] = (),
    ) -> None:
        """Train a network and write a run folder: configuration, metrics, checkpoints, result and weights.

        ``isda train --data cifar10 --network resnet-20 --scale small`` trains for a tenth of the paper's epochs.
        ``isda train --out runs/mine --resume`` resumes an interrupted run with its own settings.
        ``torchrun --nproc-per-node 4 -m isda train ...`` trains with four processes.

        Args:
            settings: of the training.
            runtime: data folder, device and checkpoints.
            task: package.module:Class of a task of your own, whose settings are then the options.
            out: the run folder; by default runs/DATA-NETWORK-METHOD-seedN.
            resume: resume the run in the folder, or start it if there is none.
            hook: package.module:Class of further loggers, see isda.lab.engine.Hook.
        """
        _train(selected.task, settings, runtime, out, resume, hook)

    return selected.command(train)


def _train(
    task: Task, settings: RunSettings, runtime: RuntimeOptions, out: Path | None, resume: bool, hook: tuple[str, ...]
) -> None:
    from isda.lab.cli.estimate import announce_duration
    from isda.lab.cli.output import print_escaped
    from isda.lab.engine.callbacks import TensorBoard, load_hook
    from isda.lab.engine.callbacks.progress import make_progress
    from isda.lab.engine.loop import train as run_training
    from isda.lab.engine.processes import Stopped, join_processes
    from isda.lab.engine.run_folder import RunFolder

    runtime.set_threads()
    if resume and out is not None:
        settings = _resumed_settings(task, settings, RunFolder(out))
    data = task.load(settings.data, runtime.data_root)
    config = task.resolve(settings, data)
    _warn_unused_shortcuts(settings, config)
    name = f"{Path(config.data).stem}-{config.network}-{config.method}-seed{config.seed}".replace(":", "-")
    run = RunFolder(out or Path("runs") / name, runtime.keep)
    if run.started:
        if not resume:
            raise ValueError(f"{run.path} holds a run already; add --resume to resume it, or choose another --out")
        run.check_resumable(config)
    if run.finished:
        print(f"{run.path} is finished already")
        return
    hooks = [make_progress(sys.stderr.isatty()), TensorBoard(), *map(load_hook, hook)]
    stop: Stopped | None = None
    with join_processes(runtime.device) as processes:
        if not run.started:
            announce_duration(config, processes)
        try:
            result = run_training(
                config,
                data,
                run.path,
                task=task,
                processes=processes,
                saving=runtime.saving(),
                hooks=hooks,
                data_root=runtime.data_root,
                workers=runtime.workers,
            )
        except Stopped as stopped:
            stop = stopped
        else:
            if processes.first:
                print_escaped(_summary(config, result, run.path))
                print_next(_next_commands(task, run.path))
    if stop is not None:
        exit_stopped(stop, "run the same command with --resume to resume", quiet=not processes.first)


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


def _next_commands(task: Task, folder: Path) -> str:
    """The commands that use a finished run of a task."""
    run = shlex.quote(folder.as_posix())
    commands = {
        "classification": f"isda predict {run} IMAGE, isda evaluate {run}, isda directions {run}",
        "semi-supervised": f"isda predict {run} IMAGE, isda evaluate {run}, isda directions {run}",
        "segmentation": f"isda segment predict {run} IMAGE, isda segment evaluate {run}",
        "detection": f"isda detect predict {run} IMAGE, isda detect evaluate {run}",
        "generation": f"isda generate sample {run}, isda generate evaluate {run}",
    }
    return commands.get(task.name, f"isda report {run}")


def _resumed_settings(task: Task, settings: RunSettings, run: "RunFolder") -> RunSettings:
    """The stored settings of a run, overridden by those of the command line; contradictions are reported later."""
    if not run.started:
        return settings
    stored = read_config(run.config_file).get("settings")
    if not isinstance(stored, dict):
        raise ValueError(f"{run.config_file} must hold the settings of the run, got {stored!r}")
    known = {f.name for f in fields(settings)}
    if not known >= set(stored):
        raise ValueError(
            f"{run.config_file} has the settings {', '.join(sorted(set(stored) - known))}, which are unknown to "
            f"{type(settings).__module__}"
        )
    given = settings.given() | {name: getattr(settings, name) for name in known & _named_options(COMMAND_WORDS.get())}
    # Code is imported because the command line names it, not because a file does.
    method = str((stored | given).get("method", ""))
    if task.user_code(method) and given.get("method") != method:
        raise ValueError(f"the run in {run.path} uses your own code; name it again to import it: --method {method}")
    return replace(type(settings)(**stored), **given)


def _named_options(words: Sequence[str]) -> set[str]:
    """The names of the options in the words of a command, including those given their default value.

    Example:
        >>> sorted(_named_options(["train", "--no-compile", "--batch-size=20", "--out", "runs/mine"]))
        ['batch_size', 'compile', 'no_compile', 'out']
    """
    names = {word[2:].partition("=")[0].replace("-", "_") for word in words if word.startswith("--")}
    return names | {name.removeprefix("no_") for name in names}
