"""The training engine: resumable runs, comparisons and searches. It does not depend on any task.

A task provides settings, batches, a training step and an evaluation; see `Task` and docs/extend.md.
`train` runs one training, `compare` runs methods x seeds, `find_runs` reads run folders.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isda.engine.callbacks import Hook
    from isda.engine.checkpoint import State
    from isda.engine.comparison import compare
    from isda.engine.config import Curve, Figure, RunConfig
    from isda.engine.loop import Saving, train
    from isda.engine.method import Method, Outcome
    from isda.engine.processes import NonFiniteLoss, Processes, Stopped, join_processes
    from isda.engine.run_records import RunRecord, find_runs, read_run
    from isda.engine.settings import SCALES, Recipe, RunSettings, TrainingSettings, learning_rate
    from isda.engine.task import Job, RunContext, Task, find_task, register
    from isda.engine.trainer import Trainer, TrainingConfig

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
    "SCALES": "settings",
    "Curve": "config",
    "Figure": "config",
    "Hook": "callbacks",
    "Job": "task",
    "Method": "method",
    "NonFiniteLoss": "processes",
    "Outcome": "method",
    "Processes": "processes",
    "Recipe": "settings",
    "RunConfig": "config",
    "RunContext": "task",
    "RunRecord": "run_records",
    "RunSettings": "settings",
    "Saving": "loop",
    "State": "checkpoint",
    "Stopped": "processes",
    "Task": "task",
    "Trainer": "trainer",
    "TrainingConfig": "trainer",
    "TrainingSettings": "settings",
    "compare": "comparison",
    "find_runs": "run_records",
    "find_task": "task",
    "join_processes": "processes",
    "learning_rate": "settings",
    "read_run": "run_records",
    "register": "task",
    "train": "loop",
}


def __getattr__(name: str) -> Any:
    """Import a name's module when it is first asked for: `isda --help` must not wait for what it does not need."""
    if name in _MODULES:
        return getattr(import_module(f"isda.engine.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'isda.engine' has no attribute {name!r}")
