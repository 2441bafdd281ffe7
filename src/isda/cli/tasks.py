"""Find the task of a command line; its settings are the options of ``isda train``, ``compare`` and ``tune``."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from isda.engine.config import read_config
from isda.engine.options import import_class
from isda.engine.run_folder import RunFolder
from isda.engine.settings import RunSettings
from isda.engine.task import Task, find_task, task_for_method


@dataclass(frozen=True, kw_only=True)
class CommandTask:
    """The task of a command line, which is imported when it is needed."""

    name: str
    settings_type: type[RunSettings]
    candidates: tuple[str, ...]
    """The names of the tasks that the methods may belong to."""
    compared: tuple[str, ...] = ()
    """Default methods of a command whose task is fixed; required if empty."""
    help: str = ""
    """Help text of a command whose task is fixed, such as ``isda segment train``; empty for ``isda train``."""

    @property
    def task(self) -> Task:
        """The task."""
        return find_task(self.name)

    def task_of(self, method: str) -> Task:
        """The task of a method string."""
        return task_for_method(method, [find_task(name) for name in self.candidates])

    def default_folder(self, kind: str, settings: RunSettings) -> Path:
        """The folder of several runs if ``--out`` is not given: runs/KIND-DATA."""
        return Path("runs") / f"{kind}-{Path(settings.data or self.task.default_data or self.name).stem}"

    def command(self, function: Callable[..., None]) -> Callable[..., None]:
        """The function as a command: if the task is fixed, with its help text and without ``--task``."""
        if self.help:
            signature = inspect.signature(function)
            kept = [parameter for name, parameter in signature.parameters.items() if name != "task"]
            function.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
            function.__doc__ = f"{self.help}\n\nArgs:{(inspect.getdoc(function) or '').partition('Args:')[2]}"
        return function


def group_task(group: ModuleType, help: str) -> CommandTask:
    """The fixed task of the commands in a group."""
    settings_type = import_class(group.SETTINGS, RunSettings, "settings")
    return CommandTask(
        name=group.TASK, settings_type=settings_type, candidates=(group.TASK,), compared=group.COMPARED, help=help
    )


def command_task(words: Sequence[str]) -> CommandTask:
    """Find the task by --task, --method(s), or the run to resume.

    A user-defined task or method is imported only if the command line names it, never because a file does.
    """
    from isda.train import IMAGE_TASKS

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--task")
    parser.add_argument("--method")
    parser.add_argument("--methods", nargs="*", default=[])
    parser.add_argument("--out")
    parser.add_argument("--resume", action="store_true")
    try:
        options, _ = parser.parse_known_args(words)
    except SystemExit:  # a value is missing; tyro's parser reports it
        options = parser.parse_args([])
    candidates = [find_task(name) for name in ([options.task] if options.task is not None else IMAGE_TASKS)]
    methods = [method for method in (options.method, *options.methods) if method]
    task = candidates[0]
    if options.task is None and methods:
        # The settings of a later candidate include those of the earlier ones.
        task = max((task_for_method(method, candidates) for method in methods), key=candidates.index)
    elif options.task is None and options.resume and options.out and RunFolder(Path(options.out)).started:
        task = _stored_task(RunFolder(Path(options.out)))
    names = tuple(candidate.name for candidate in candidates)
    return CommandTask(name=task.name, settings_type=task.settings_type, candidates=names)


def _stored_task(run: RunFolder) -> Task:
    name = read_config(run.config_file).get("task")
    if not isinstance(name, str) or ":" in name:
        raise ValueError(f"{run.config_file} must name the task of the run, got {name!r}")
    return find_task(name)
