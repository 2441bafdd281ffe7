"""The interface between the engine and a task (`Task`, `Job`), and the registry of tasks by name.

Packages register tasks with the entry point group ``isda.lab.tasks``. `Classification` is one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from isda.lab.choices import check_choice
from isda.lab.engine.config import RunConfig
from isda.lab.engine.options import import_class, split_method, user_code_names
from isda.lab.engine.settings import RunSettings

if TYPE_CHECKING:
    from torch import Tensor

    from isda.lab.engine.checkpoint import State
    from isda.lab.engine.processes import Processes


@dataclass(frozen=True)
class RunContext:
    """Where a run is executed; nothing of it influences the result."""

    processes: Processes
    folder: Path
    data_root: Path | None = None
    """The folder of data sets."""
    workers: int = 4
    """Threads that prepare batches ahead, if images are decoded from files."""


class Job(ABC):
    """A run in progress. `isda.lab.engine.Trainer` is one for a network, a method and an optimiser."""

    config: RunConfig
    processes: Processes

    @abstractmethod
    def batches(self, epoch: int, start: int) -> Iterator[Any]:
        """This process's part of each batch of an epoch (from 0), from step ``start`` of the epoch on."""

    @abstractmethod
    def step(self, batch: Any, step: int) -> None:
        """One optimiser step; ``step`` is how many came before. All its randomness follows from (seed, step, rank)."""

    @abstractmethod
    def finish_epoch(self, epoch: int, step: int) -> dict[str, Any]:
        """The metrics of a finished epoch (from 1), after ``step`` steps; the same in all processes."""

    @abstractmethod
    def state(self) -> State:
        """What is needed to resume. Called in all processes; that of the first is written."""

    @abstractmethod
    def restore(self, state: State) -> None:
        """Restore a state; raises a ValueError if it does not fit."""

    @abstractmethod
    def weights(self) -> dict[str, Tensor]:
        """The named tensors of the finished network, for model.safetensors."""

    def check(self) -> None:  # noqa: B027, a job may have nothing to check
        """Raise an error, in all processes together, if the state must not be saved."""

    def conclude(self, folder: Path) -> dict[str, Any]:
        """The content of result.json beside the figures, after the last step; may write files to the folder.

        Called in all processes; the result of the first is written. Called again if the run is killed meanwhile.
        """
        return {}

    def before_first_step(self) -> None:  # noqa: B027, most have nothing to do
        """Called before the first step of a run that is not resumed, in all processes."""

    def keep(self, folder: Path) -> None:  # noqa: B027, most have nothing to keep
        """Write what the trained network needs beside its weights to the run folder, before the first step."""


class HeldOut(NamedTuple):
    """How `isda tune` chooses settings without the test set."""

    choosing: Any
    """The settings of runs that are evaluated on held-out data."""
    final: Any
    """The settings of the final runs, which train on the held-out data as well."""
    description: str
    """Describes the held-out data."""


class Task(ABC):
    """A kind of training."""

    name: ClassVar[str]
    """As written to config.json."""
    settings_type: ClassVar[type[RunSettings]]
    """The settings of a user."""
    config_type: ClassVar[type[RunConfig]]
    """The settings with every default filled in."""
    default_methods: ClassVar[tuple[str, ...]] = ()
    """What `isda compare` compares by default; all methods if empty."""
    default_data: ClassVar[str] = ""
    """The data set of settings without one; it names folders of runs."""

    class_options: ClassVar[tuple[str, ...]] = ()
    """Options of methods whose value may be package.module.Class of the user's own."""

    @abstractmethod
    def methods(self) -> Sequence[str]:
        """The names of its methods."""

    @abstractmethod
    def load(self, data: str | None, root: Path | None = None) -> Any:
        """The data of a name, the default set for None; loaded once for any number of runs."""

    @abstractmethod
    def resolve(self, settings: Any, data: Any) -> RunConfig:
        """The configuration with all defaults filled in; raises a ValueError if a setting is invalid."""

    @abstractmethod
    def start(self, config: Any, data: Any, context: RunContext) -> Job:
        """The run, before its first step."""

    @classmethod
    def user_code(cls, method: str) -> list[str]:
        """The user-defined classes that a method string names; nothing is imported."""
        return user_code_names(method, cls.class_options)

    def options(self, method: str) -> dict[str, type]:
        """The options of a method string and their types; for `isda tune`."""
        return {}

    def grid(self, settings: Any, data: Any) -> dict[str, tuple[Any, ...]]:
        """The default grid of `isda tune`: options of ``settings.method``, and ascending values of each."""
        return {}

    def held_out(self, settings: Any, data: Any) -> HeldOut:
        """How `isda tune` chooses settings; raises a ValueError if nothing can be held out."""
        raise ValueError(f"task {self.name} has no held-out data to choose settings by")


ENTRY_POINT_GROUP = "isda.lab.tasks"

_registered: dict[str, Task] = {}


def register(task: type[Task]) -> Task:
    """Register a task by its name in this process."""
    _registered[task.name] = task()
    return _registered[task.name]


def task_names() -> list[str]:
    """The names that `find_task` knows."""
    return sorted({*_registered, *(entry.name for entry in _entry_points())})


def find_task(name: str) -> Task:
    """The task of a name: registered in this process, or by the entry point of an installed package.

    ``package.module:Class`` imports a task that is not registered. Only users may write that: names from files are
    looked up, never imported.
    """
    if ":" in name:
        return register(import_class(name, Task, "task"))  # type: ignore[type-abstract]
    if name not in _registered:
        check_choice("task", name, task_names())
        entry = next(entry for entry in _entry_points() if entry.name == name)
        register(entry.load())
    return _registered[name]


def task_reference(task: type[Task]) -> str:
    """The name by which another process finds a task: that of its entry point, else ``package.module:Class``."""
    if any(entry.name == task.name and entry.load() is task for entry in _entry_points()):
        return task.name
    return f"{task.__module__}:{task.__qualname__}"


def task_for_method(method: str, tasks: Sequence[Task]) -> Task:
    """The task of a method string; user-defined classes belong to the first task.

    Raises:
        ValueError: no task has the method.
    """
    name, _ = split_method(method)
    if "." in name:
        return tasks[0]
    check_choice("method", name, [known for task in tasks for known in task.methods()])
    return next(task for task in tasks if name in task.methods())


@cache
def _entry_points() -> tuple[Any, ...]:
    return tuple(entry_points(group=ENTRY_POINT_GROUP))
