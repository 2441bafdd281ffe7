"""The training engine: resumable runs, comparisons and searches. It does not depend on any task.

A task provides settings, batches, a training step and an evaluation; see `Task`.
`train` runs one training, `compare` runs methods x seeds, `find_runs` reads run folders.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isda.lab.engine.callbacks import Hook
    from isda.lab.engine.checkpoint import State
    from isda.lab.engine.comparison import compare
    from isda.lab.engine.config import Curve, Figure, RunConfig, TrainingConfig
    from isda.lab.engine.loop import train
    from isda.lab.engine.method import Method, Outcome
    from isda.lab.engine.processes import NonFiniteLoss, Processes, Stopped, join_processes
    from isda.lab.engine.run_records import RunRecord, find_runs, read_run
    from isda.lab.engine.settings import SCALES, Recipe, RunSettings, Saving, TrainingSettings, learning_rate
    from isda.lab.engine.task import Job, RunContext, Task, find_task, register
    from isda.lab.engine.trainer import Trainer

__all__ = [
    "SCALES",
    "Curve",
    "Figure",
    "Hook",
    "Job",
    "Method",
    "NonFiniteLoss",
    "Outcome",
    "Processes",
    "Recipe",
    "RunConfig",
    "RunContext",
    "RunRecord",
    "RunSettings",
    "Saving",
    "State",
    "Stopped",
    "Task",
    "Trainer",
    "TrainingConfig",
    "TrainingSettings",
    "compare",
    "find_runs",
    "find_task",
    "join_processes",
    "learning_rate",
    "read_run",
    "register",
    "train",
]

_MODULES = {
    "callbacks": ("Hook",),
    "checkpoint": ("State",),
    "comparison": ("compare",),
    "config": ("Curve", "Figure", "RunConfig", "TrainingConfig"),
    "loop": ("train",),
    "method": ("Method", "Outcome"),
    "processes": ("NonFiniteLoss", "Processes", "Stopped", "join_processes"),
    "run_records": ("RunRecord", "find_runs", "read_run"),
    "settings": ("SCALES", "Recipe", "RunSettings", "Saving", "TrainingSettings", "learning_rate"),
    "task": ("Job", "RunContext", "Task", "find_task", "register"),
    "trainer": ("Trainer",),
}


def __getattr__(name: str) -> Any:
    """Import the module of a name at its first use: `isda --help` must not import torch."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"isda.lab.engine.{module}"), name)
    raise AttributeError(f"module 'isda.lab.engine' has no attribute {name!r}")
