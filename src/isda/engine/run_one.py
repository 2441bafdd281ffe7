"""One planned run in this process, or in several that torchrun starts; how it ended comes back as a value."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from isda.engine.folder.run_folder import ERROR_FILE, RunFolder
from isda.engine.interruptions import NonFiniteLoss, Stopped
from isda.engine.loop import train
from isda.engine.planned import Planned, Problem
from isda.engine.processes import join_processes
from isda.engine.task import Task
from isda.engine.watching.tensorboard import TensorBoard
from isda.errors import describe, is_ours

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
    if isinstance(error, Stopped):
        return Problem(str(error))
    told = describe(error) if is_ours(error) else f"{describe(error)}; the traceback is in {ERROR_FILE}"
    return Problem(told, isinstance(error, NonFiniteLoss))


def run_one(one: Planned) -> Problem | None:
    """Train in this process; what went wrong, if anything did."""
    try:
        make_run(one)
    except Exception as error:
        return problem_of(error)
    return None
