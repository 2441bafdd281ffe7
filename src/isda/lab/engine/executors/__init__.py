"""Many runs at the same time: processes of this machine, Ray, or Slurm by submitit.

An executor has the interface of `concurrent.futures`: ``submit`` and ``shutdown``.
"""

from isda.lab.engine.executors.clusters import ray_executor, slurm_executor
from isda.lab.engine.executors.local import process_executor
from isda.lab.engine.executors.runs import (
    Execution,
    ExecutorOptions,
    PlannedRun,
    RunProblem,
    RunsFailed,
    Watcher,
    load_data_cached,
    open_execution,
    run_all,
)

__all__ = [
    "Execution",
    "ExecutorOptions",
    "PlannedRun",
    "RunProblem",
    "RunsFailed",
    "Watcher",
    "load_data_cached",
    "open_execution",
    "process_executor",
    "ray_executor",
    "run_all",
    "slurm_executor",
]
