"""Executors of clusters: Ray, and Slurm by submitit. All machines must share the folders of the submitting one."""

from __future__ import annotations

import logging
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from isda.lab.engine.processes import raise_stopped
from isda.lab.extras import needed_by

FORWARDED_VARIABLES = ("ISDA_DATA", "PYTHONPATH")
"""Environment variables that are set on other machines as here: the data folder, and the path of user code."""
SECONDS_TO_SAVE = 60.0
OBJECT_STORE_BYTES = 80 << 20
"""Ray keeps results in shared memory; those of runs are sentences."""


class _Packed:
    """A call that another machine makes in the folder of this one, with the same environment."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        # Unpacked after the path is set: a task may be a module in this folder.
        self.call = pickle.dumps((function, arguments))
        self.folder = os.getcwd()
        self.environment = {name: os.environ[name] for name in FORWARDED_VARIABLES if name in os.environ}

    def __call__(self) -> Any:
        os.chdir(self.folder)
        os.environ.update(self.environment)
        sys.path += [self.folder, *filter(None, self.environment.get("PYTHONPATH", "").split(os.pathsep))]
        function, arguments = pickle.loads(self.call)
        return function(*arguments)

    def checkpoint(self, *arguments: Any) -> Any:
        """What submitit submits again when Slurm preempts the job; the run goes on from its checkpoint."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class _RayExecutor(Executor):
    """Tasks of Ray. A task whose worker dies is executed again, and its run goes on from its checkpoint."""

    def __init__(self, cpus: int, gpus: float) -> None:
        import ray

        self._ray, self._running = ray, dict[Any, Future[Any]]()
        self._remote = ray.remote(lambda packed: packed()).options(num_cpus=cpus, num_gpus=gpus, max_retries=3)

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        reference = self._remote.remote(_Packed(function, arguments))
        future: Future[Any] = reference.future()
        self._running[reference] = future
        return future

    def cancel_all(self) -> None:
        """Let the runs save and stop."""
        for reference, future in self._running.items():
            if not future.done():
                self._ray.cancel(reference)  # raises KeyboardInterrupt in the task, which saves
        deadline = time.monotonic() + SECONDS_TO_SAVE
        while time.monotonic() < deadline and not all(future.done() for future in self._running.values()):
            time.sleep(0.2)


@contextmanager
def ray_executor(address: str, cpus: int, gpus: float, jobs: int) -> Iterator[Executor]:
    """Tasks of a Ray cluster.

    Args:
        address: of the cluster; by default that of RAY_ADDRESS, or else one is started on this machine.
        cpus: of a run.
        gpus: of a run.
        jobs: runs at the same time that a cluster of this machine has room for.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    with needed_by("--on ray"):
        import ray

    address = address or os.environ.get("RAY_ADDRESS", "")
    started: dict[str, Any] = {"num_cpus": jobs * cpus, "include_dashboard": False}
    settings = {"address": address} if address else started | {"object_store_memory": OBJECT_STORE_BYTES}
    ray.init(**settings, logging_level=logging.ERROR, log_to_driver=False)
    executor = _RayExecutor(cpus, gpus)
    # Runs are cancelled at the end: a signal may come while this process communicates with the cluster.
    with raise_stopped(lambda: None):
        try:
            yield executor
        finally:
            executor.cancel_all()
            ray.shutdown()


class _SlurmExecutor(Executor):
    def __init__(self, executor: Any) -> None:
        self._executor, self._jobs = executor, list[Any]()

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Any:
        job = self._executor.submit(_Packed(function, arguments))
        self._jobs.append(job)
        return job

    def cancel_all(self) -> None:
        """Let the runs save and stop."""
        for job in self._jobs:
            if not job.done():
                job.cancel(check=False)


@contextmanager
def slurm_executor(
    folder: Path, cpus: int, gpus: float, options: Mapping[str, str], cluster: str | None = "slurm"
) -> Iterator[Executor]:
    """Jobs of Slurm.

    Args:
        folder: for their logs, on a disk that the machines share.
        cpus: of a run.
        gpus: of a run.
        options: of sbatch, as submitit takes them: partition, time in minutes, account.
        cluster: "local" for processes of this machine, as submitit's tests have them.
    """
    with needed_by("--on slurm"):
        import submitit

    executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
    values = {f"slurm_{key}": int(value) if value.isdigit() else value for key, value in options.items()}
    executor.update_parameters(name="isda", cpus_per_task=cpus, gpus_per_node=int(gpus), **values)
    jobs = _SlurmExecutor(executor)
    with raise_stopped(lambda: None):
        try:
            yield jobs
        finally:
            jobs.cancel_all()
