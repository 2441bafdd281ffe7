"""The interface between the engine and a task (`Task`, `Job`), and the registry of tasks by name.

Packages register tasks with the entry point group ``isda.tasks``. docs/extend.md shows a complete task.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from isda._utils.choices import check_choice
from isda.engine.checkpoint import State
from isda.engine.config import RunConfig
from isda.engine.options import import_class, split_method, user_code_names
from isda.engine.processes import Processes
from isda.engine.settings import RunSettings

# The contract between the engine and a task: what a kind of training brings, and what it gets for it.
#
# A task brings typed settings, their resolution into a configuration, and a job that makes steps and measures. The
# engine gives it run folders, checkpoints that survive anything, resuming to the bit, signals, many processes, hooks,
# progress, comparisons of methods over seeds, and the report. docs/extend.md shows a whole task.


@dataclass(frozen=True)
class RunContext:
    """Where and by whom a run is made: nothing of it decides what is learnt."""

    processes: Processes
    folder: Path
    data_root: Path | None = None
    """The folder of data sets."""
    workers: int = 4
    """Threads that prepare batches ahead, where images are decoded from files."""


class Job(ABC):
    """One run while it goes on. `isda.engine.Trainer` is one for a network, a method and an optimiser."""

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
        """The figures of an epoch (from 1) that has come to its end, after ``step`` steps; in all processes alike."""

    @abstractmethod
    def state(self) -> State:
        """All that must survive an interruption. Called in all processes; the first one's is written."""

    @abstractmethod
    def restore(self, state: State) -> None:
        """Take up where `state` was made; a ValueError if it does not fit."""

    @abstractmethod
    def weights(self) -> dict[str, Tensor]:
        """The named tensors of the finished network, for model.safetensors."""

    def check(self) -> None:  # noqa: B027, a job may have nothing to check
        """Raise an error, in all processes together, if the state is not worth saving."""

    def conclude(self, folder: Path) -> dict[str, Any]:
        """What result.json holds beside the figures, after the last step; files beside it go into the folder.

        Called in all processes; the first one's answer is written. A run that is killed here comes here again.
        """
        return {}

    def before_first_step(self) -> None:  # noqa: B027, most have nothing to do
        """What a run that is not resumed does before its first step; in all processes."""

    def keep(self, folder: Path) -> None:  # noqa: B027, most have nothing to keep
        """Write what the finished network needs beside its weights into the run folder, before the first step."""


class HeldOut(NamedTuple):
    """How settings are chosen without the test set."""

    choosing: Any
    """The settings of runs that are judged by held-out data."""
    final: Any
    """The settings of the runs that follow the choice: what was held out is trained on again."""
    told: str
    """What is held out, in words."""


class Task(ABC):
    """A kind of training."""

    name: ClassVar[str]
    """As it stands in config.json."""
    settings_type: ClassVar[type[RunSettings]]
    """What a user can ask for."""
    config_type: ClassVar[type[RunConfig]]
    """The settings with every default filled in."""

    class_options: ClassVar[tuple[str, ...]] = ()
    """Options of methods whose value may be package.module.Class of the user's own."""

    @abstractmethod
    def methods(self) -> Sequence[str]:
        """The names of the methods it knows."""

    @abstractmethod
    def load(self, data: str | None, root: Path | None = None) -> Any:
        """The data that the name stands for, loaded once for any number of runs; the default set for None."""

    @abstractmethod
    def resolve(self, settings: Any, data: Any) -> RunConfig:
        """Fill in everything that the settings leave open, and check all of it; a ValueError names what is wrong."""

    @abstractmethod
    def start(self, config: Any, data: Any, place: RunContext) -> Job:
        """The run, before its first step."""

    @classmethod
    def user_code(cls, method: str) -> list[str]:
        """The user-defined classes that a method string names; nothing is imported."""
        return user_code_names(method, cls.class_options)

    def options(self, method: str) -> dict[str, type]:
        """The options of a method, as a user writes it, and the type of each; for `isda tune`."""
        return {}

    def grid(self, settings: Any, data: Any) -> dict[str, tuple[Any, ...]]:
        """What `isda tune` tries where the user does not say: options of ``settings.method``, values in order."""
        return {}

    def held_out(self, settings: Any, data: Any) -> HeldOut:
        """How `isda tune` chooses settings; a ValueError if there is nothing to hold out."""
        raise ValueError(f"task {self.name} has no held-out data to choose settings by (docs/extend.md)")


ENTRY_POINT_GROUP = "isda.tasks"

_registered: dict[str, Task] = {}


def register(task: type[Task]) -> Task:
    """Make a task known in this process by its name."""
    made = _registered[task.name] = task()
    return made


def task_names() -> list[str]:
    """The names that `find_task` knows."""
    return sorted({*_registered, *(entry.name for entry in _entry_points())})


def find_task(name: str) -> Task:
    """The task of a name: registered in this process, or announced by an installed package.

    ``package.module:Class`` names one that nobody has announced. Only a user may write that: names that are read from
    files are looked up, never imported.
    """
    if ":" in name:
        return register(import_class(name, Task, "task"))  # type: ignore[type-abstract]
    if name not in _registered:
        check_choice("task", name, task_names())
        entry = next(entry for entry in _entry_points() if entry.name == name)
        register(entry.load())
    return _registered[name]


def task_reference(task: type[Task]) -> str:
    """How another process finds a task: by its name if a package announces it, else by ``package.module:Class``."""
    found = [entry for entry in _entry_points() if entry.name == task.name and entry.load() is task]
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
def _entry_points() -> tuple[Any, ...]:
    return tuple(entry_points(group=ENTRY_POINT_GROUP))
