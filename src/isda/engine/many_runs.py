"""Any number of runs, wherever they are made: those that are finished stay, those that were interrupted go on."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from isda.engine.folder.run_folder import RunFolder
from isda.engine.places.local import worker_pool
from isda.engine.places.pool import Pool
from isda.engine.planned import Planned, Problem, RunsFailed, Watcher
from isda.engine.run_one import load_once

__all__ = ["Planned", "Problem", "RunsFailed", "Watcher", "load_once", "run_planned"]


def run_planned(
    planned: Sequence[Planned], jobs: int = 1, watcher: Watcher | None = None, pool: Pool | None = None
) -> None:
    """Make every run that is not finished yet.

    Args:
        planned: the runs; nothing is begun unless all of them can be.
        jobs: processes that train at the same time, where no pool is given; they share the cores evenly.
        watcher: told how far things have come.
        pool: where the runs are made, see `isda.engine.places`; by default in processes that come and go with them.

    Raises:
        ValueError: a folder holds another run or a damaged one, before anything is trained.
        RunsFailed: runs failed, after all others are done.
        Stopped: SIGTERM or Ctrl-C came; the runs at hand have saved a checkpoint.
        HandedOver: the pool has left the runs to somebody else.
    """
    for one in planned:
        run = RunFolder(one.folder)
        if run.started:
            run.check_resumable(one.config)
        if run.started and run.finished:
            run.read_result()
    with worker_pool(min(jobs, len(planned))) if pool is None else nullcontext(pool) as made:
        problems = made.make(planned, watcher or Watcher())
    if problems:
        raise RunsFailed(problems, len(planned))
