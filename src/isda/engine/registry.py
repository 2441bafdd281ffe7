"""Tasks by name. Packages announce theirs under the entry point group ``isda.tasks``; so does this one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from isda.choices import check_choice
from isda.engine.grammar import split_method
from isda.engine.naming import load_named
from isda.engine.task import Task

__all__ = ["find_task", "reference", "register", "task_for_method", "task_names"]

GROUP = "isda.tasks"

_registered: dict[str, Task] = {}


def register(task: type[Task]) -> Task:
    """Make a task known in this process by its name."""
    made = _registered[task.name] = task()
    return made


def task_names() -> list[str]:
    """The names that `find_task` knows."""
    return sorted({*_registered, *(entry.name for entry in _announced())})


def find_task(name: str) -> Task:
    """The task of a name: registered in this process, or announced by an installed package.

    ``package.module:Class`` names one that nobody has announced. Only a user may write that: names that are read from
    files are looked up, never imported.
    """
    if ":" in name:
        return register(load_named(name, Task, "task"))  # type: ignore[type-abstract]
    if name not in _registered:
        check_choice("task", name, task_names())
        entry = next(entry for entry in _announced() if entry.name == name)
        register(entry.load())
    return _registered[name]


def reference(task: type[Task]) -> str:
    """How another process finds a task: by its name if a package announces it, else by ``package.module:Class``."""
    found = [entry for entry in _announced() if entry.name == task.name and entry.load() is task]
    return task.name if found else f"{task.__module__}:{task.__qualname__}"


def task_for_method(method: str, tasks: Sequence[Task]) -> Task:
    """The task among some that knows a method, as a user writes it; the first takes classes of the user's own.

    Raises:
        ValueError: none of them does.
    """
    name, _ = split_method(method)
    if "." in name:
        return tasks[0]
    check_choice("method", name, [known for task in tasks for known in task.methods()])
    return next(task for task in tasks if name in task.methods())


@cache
def _announced() -> tuple[Any, ...]:
    return tuple(entry_points(group=GROUP))
