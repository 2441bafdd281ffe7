"""Find the task of a command line; its settings are the options of ``isda train``, ``compare`` and ``tune``."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from isda.lab.choices import check_choice
from isda.lab.engine.config import read_config
from isda.lab.engine.options import import_class, split_method
from isda.lab.engine.settings import RunSettings
from isda.lab.engine.task import Task, find_task, task_for_method
from isda.lab.methods.summaries import COMPARED

IMAGE_SETTINGS = {
    "classification": "isda.lab.tasks.classification.settings:ClassificationSettings",
    "semi-supervised": "isda.lab.tasks.semi_supervised.settings:SemiSettings",
}
"""The tasks of `isda train` and their settings, which do not import torch; the method decides which."""


@dataclass(frozen=True, kw_only=True)
class CommandTask:
    """The task of a command line, which is imported when it is needed."""

    name: str
    settings_type: type[RunSettings]
    candidates: tuple[str, ...]
    """The names of the tasks that the methods may belong to."""
    compared: tuple[str, ...] = ()
    """Default methods of `isda compare`; required if empty."""
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


def group_task(group: ModuleType, help: str, words: Sequence[str]) -> CommandTask:
    """The fixed task of the commands in a group; a misspelt method in the words is refused before torch is imported."""
    settings_type = import_class(group.SETTINGS, RunSettings, "settings")
    for method in _named_methods(words):
        _task_of(method, {group.TASK: settings_type})
    return CommandTask(
        name=group.TASK, settings_type=settings_type, candidates=(group.TASK,), compared=group.COMPARED, help=help
    )


def command_task(words: Sequence[str]) -> CommandTask:
    """Find the task by --task, --method(s), or the run to resume; those of `isda train` without importing torch.

    A user-defined task or method is imported only if the command line names it, never because a file does.
    """
    options = _selecting_options(words)
    if options.task is not None and options.task not in IMAGE_SETTINGS:
        return _other_task(options.task, [options.task])
    names = list(IMAGE_SETTINGS) if options.task is None else [options.task]
    settings = {name: import_class(IMAGE_SETTINGS[name], RunSettings, "settings") for name in names}
    methods = _named_methods(words)
    chosen = names[0]
    if options.task is None and methods:
        # The settings of a later candidate include those of the earlier ones.
        chosen = max((_task_of(method, settings) for method in methods), key=names.index)
    elif options.task is None and options.resume and options.out:
        chosen = _stored_task(Path(options.out)) or chosen
    if chosen not in settings:
        return _other_task(chosen, names)
    compared = COMPARED if chosen == names[0] == "classification" else tuple(settings[chosen].method_summaries)
    return CommandTask(name=chosen, settings_type=settings[chosen], candidates=tuple(names), compared=compared)


def _selecting_options(words: Sequence[str]) -> argparse.Namespace:
    """The options that select the task of a command."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--task")
    parser.add_argument("--method")
    parser.add_argument("--methods", nargs="*", default=[])
    parser.add_argument("--out")
    parser.add_argument("--resume", action="store_true")
    try:
        return parser.parse_known_args(words)[0]
    except SystemExit:  # a value is missing; tyro's parser reports it
        return parser.parse_args([])


def _named_methods(words: Sequence[str]) -> list[str]:
    options = _selecting_options(words)
    return [method for method in (options.method, *options.methods) if method]


def _task_of(method: str, settings: Mapping[str, type[RunSettings]]) -> str:
    """The task of a method string; user-defined classes belong to the first."""
    name, _ = split_method(method)
    if "." in name:
        return next(iter(settings))
    check_choice("method", name, [known for kind in settings.values() for known in kind.method_summaries])
    return next(task for task, kind in settings.items() if name in kind.method_summaries)


def _other_task(name: str, candidates: Sequence[str]) -> CommandTask:
    """A task that is not one of IMAGE_SETTINGS, which is imported."""
    task = find_task(name)
    known = task.methods()
    compared = tuple(method for method in task.default_methods if method in known) or tuple(known)
    names = tuple(find_task(candidate).name for candidate in candidates)
    return CommandTask(name=task.name, settings_type=task.settings_type, candidates=names, compared=compared)


def _stored_task(folder: Path) -> str | None:
    """The task of the run in a folder, None if it holds none."""
    from isda.lab.engine.run_folder import RunFolder

    run = RunFolder(folder)
    if not run.started:
        return None
    name = read_config(run.config_file).get("task")
    if not isinstance(name, str) or ":" in name:
        raise ValueError(f"{run.config_file} must name the task of the run, got {name!r}")
    return name
