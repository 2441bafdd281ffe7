"""The engine: runs that survive anything, alone or many side by side. It knows no task.

A task (classification, segmentation, your own) brings settings, batches, a step and an evaluation; see `Task`, and
docs/extend.md for a whole one. `train` makes one run, `compare` methods x seeds, `find_runs` reads them back.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isda.engine.comparing import compare
    from isda.engine.folder.checkpoint import State
    from isda.engine.folder.config import RunConfig
    from isda.engine.folder.figures import Curve, Figure
    from isda.engine.folder.reading import RunRecord, find_runs, read_run
    from isda.engine.interruptions import NonFiniteLoss, Stopped
    from isda.engine.loop import train
    from isda.engine.method import Method, Outcome
    from isda.engine.processes import Processes, join_processes
    from isda.engine.recipe import SCALES, Recipe, learning_rate
    from isda.engine.registry import find_task, register
    from isda.engine.saving import Saving
    from isda.engine.settings import RunSettings
    from isda.engine.task import Job, Place, Task
    from isda.engine.trainer import Trainer, TrainingConfig
    from isda.engine.watching.hooks import Hook

_HOMES = {
    "SCALES": "recipe",
    "Curve": "folder.figures",
    "Figure": "folder.figures",
    "Hook": "watching.hooks",
    "Job": "task",
    "Method": "method",
    "NonFiniteLoss": "interruptions",
    "Outcome": "method",
    "Place": "task",
    "Processes": "processes",
    "Recipe": "recipe",
    "RunConfig": "folder.config",
    "RunRecord": "folder.reading",
    "RunSettings": "settings",
    "Saving": "saving",
    "State": "folder.checkpoint",
    "Stopped": "interruptions",
    "Task": "task",
    "Trainer": "trainer",
    "TrainingConfig": "trainer",
    "compare": "comparing",
    "find_runs": "folder.reading",
    "find_task": "registry",
    "join_processes": "processes",
    "learning_rate": "recipe",
    "read_run": "folder.reading",
    "register": "registry",
    "train": "loop",
}

__all__ = [
    "SCALES",
    "Curve",
    "Figure",
    "Hook",
    "Job",
    "Method",
    "NonFiniteLoss",
    "Outcome",
    "Place",
    "Processes",
    "Recipe",
    "RunConfig",
    "RunRecord",
    "RunSettings",
    "Saving",
    "State",
    "Stopped",
    "Task",
    "Trainer",
    "TrainingConfig",
    "compare",
    "find_runs",
    "find_task",
    "join_processes",
    "learning_rate",
    "read_run",
    "register",
    "train",
]


def __getattr__(name: str) -> Any:
    """Import a name's module when it is first asked for: `isda --help` must not wait for what it does not need."""
    if name in _HOMES:
        return getattr(import_module(f"isda.engine.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'isda.engine' has no attribute {name!r}")
