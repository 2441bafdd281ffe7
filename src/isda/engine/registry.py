"""Tasks by name. Packages announce theirs under the entry point group ``isda.tasks``; so does this one."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import cache
from importlib.metadata import entry_points
from typing import Any, TypeVar

from isda.choices import check_choice
from isda.engine.grammar import split_method
from isda.engine.task import Task

__all__ = ["find_task", "load_named", "register", "task_for_method", "task_names"]

GROUP = "isda.tasks"

_registered: dict[str, Task] = {}
_Kind = TypeVar("_Kind")


def register(task: type[Task]) -> Task:
    """Make a task known in this process by its name."""
    return _registered.setdefault(task.name, task())


def task_names() -> list[str]:
    """The names that `find_task` knows."""
    return sorted({*_registered, *(entry.name for entry in _announced())})


def find_task(name: str) -> Task:
    """The task of a name: registered in this process, or announced by an installed package.

    ``package.module:Class`` names one that nobody has announced. Only a user may write that: names that are read from
    files are looked up, never imported.
    """
    if ":" in name:
        return register(load_named(name.replace(":", "."), Task, "task"))  # type: ignore[type-abstract]
    if name not in _registered:
        check_choice("task", name, task_names())
        entry = next(entry for entry in _announced() if entry.name == name)
        register(entry.load())
    return _registered[name]


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


def load_named(name: str, kind: type[_Kind], what: str) -> type[_Kind]:
    """The class that ``package.module.Class`` names, which must be a ``kind``."""
    module_name, _, attribute = name.rpartition(".")
    try:
        found: Any = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{what} {name!r} could not be loaded: {error}") from error
    if not (isinstance(found, type) and issubclass(found, kind)):
        raise ValueError(f"{what} {name!r} must be a subclass of {kind.__module__}.{kind.__name__}, got {found!r}")
    return found


@cache
def _announced() -> tuple[Any, ...]:
    return tuple(entry_points(group=GROUP))
