"""One planned run in this process, or in several that torchrun starts; how it ended comes back as a value."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from isda.engine.folder.run_folder import RunFolder
from isda.engine.interruptions import NonFiniteLoss, Stopped
from isda.engine.loop import train
from isda.engine.planned import Planned, Problem
from isda.engine.processes import join_processes
from isda.engine.task import Task
from isda.engine.watching.tensorboard import TensorBoard

__all__ = ["load_once", "make_run", "problem_of", "run_one"]


@lru_cache(maxsize=1)
def load_once(task: type[Task], data: str | None, root: Path | None) -> Any:
    """The data of a task; the last one asked for is kept."""
    return task().load(data, root)


def make_run(one: Planned) -> None:
    """Train, alone or as one of the processes that torchrun started; a run that is finished stays as it is.

    Raises:
        Stopped: SIGTERM or Ctrl-C came; a checkpoint was saved.
        Exception: whatever else ended the run, see `problem_of`.
    """
    if RunFolder(one.folder).finished:
        return
    data = load_once(one.task, one.data, one.data_root)
    with join_processes(one.device) as processes:
        train(
            one.config,
            data,
            one.folder,
            task=one.task(),
            processes=processes,
            saving=one.saving,
            hooks=[TensorBoard()],
            data_root=one.data_root,
            workers=one.workers,
        )


def problem_of(error: Exception) -> Problem:
    """Why a run did not come to its end, in words."""
    if isinstance(error, Stopped | ValueError | OSError):
        return Problem(str(error), isinstance(error, NonFiniteLoss))
    # The other runs go on, and the user still learns what kind of error it was.
    return Problem(f"{type(error).__name__}: {error}")


def run_one(one: Planned) -> Problem | None:
    """Train in this process; what went wrong, if anything did."""
    try:
        make_run(one)
    except Exception as error:
        return problem_of(error)
    return None
