"""Executor: tasks of an existing or a local Ray cluster.

A run whose worker dies is resumed elsewhere from its checkpoint; all machines must share the run folders.
"""

from __future__ import annotations

import logging
import os
import pickle
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from isda._utils.extras import missing_message
from isda._utils.text import use_plain_warnings
from isda.engine.executors import (
    FORWARDED_VARIABLES,
    ExecutorRequest,
    PlannedRun,
    RunProblem,
    Watcher,
    WorkerDied,
    WorkerExecutor,
)
from isda.engine.executors.worker import run_in_processes
from isda.engine.processes import Stopped, raise_stopped
from isda.engine.run_folder import FolderInUse, folder_lock

ACCEPTED_OPTIONS = ("address", "cpus_per_run", "gpus_per_run")
# What the runs at hand get to save when all is stopped, and what a dead worker's processes get to leave a folder.
SECONDS_TO_SAVE = 60.0
SECONDS_TO_ANSWER = 10.0
# Ray keeps results in shared memory; ours are sentences.
OBJECT_STORE_BYTES = 80 << 20
# Nothing is sent to Ray's makers, and nothing said about GPUs that are not asked for.
RAY_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


@contextmanager
def open_executor(request: ExecutorRequest) -> Iterator[WorkerExecutor]:
    """A cluster for a request, which is joined or started when it is given runs, and left at the end."""
    if find_spec("ray") is None:
        raise ValueError(f"--on ray needs {missing_message('ray')}")
    pool = _RayExecutor(request)
    # The cluster is told in `leave`: a signal may come while this process is talking to it.
    with raise_stopped(lambda: None):
        try:
            yield pool
        finally:
            pool.leave()


class _RayExecutor(WorkerExecutor):
    def __init__(self, request: ExecutorRequest) -> None:
        self.request = request
        self.address = request.address or os.environ.get("RAY_ADDRESS", "")
        self.jobs = request.spread.jobs if self.address else request.jobs
        self.ray: Any = None
        self.running: dict[Future[RunProblem | None], Any] = {}
        self.temporary: str | None = None

    def make(self, planned: Sequence[PlannedRun], watcher: Watcher) -> dict[Path, RunProblem]:
        if self.ray is None:
            self._join()
        self._check_room(max((self._gpus(one) for one in planned), default=0))
        return super().make(planned, watcher)

    def submit(self, one: PlannedRun) -> Future[RunProblem | None]:
        died = (
            self.ray.exceptions.WorkerCrashedError,
            self.ray.exceptions.NodeDiedError,
            self.ray.exceptions.OutOfMemoryError,
        )
        task = self.ray.remote(_work).options(num_cpus=self._cpus, num_gpus=self._gpus(one), max_retries=0)
        surroundings = {name: os.environ[name] for name in FORWARDED_VARIABLES if name in os.environ}
        packed = self.ray.cloudpickle.dumps(one)  # unpacked when the worker knows where a task of the user's own is
        made = task.remote(packed, os.getcwd(), surroundings, self._threads, self.request.spread.processes_per_run)
        ended: Future[RunProblem | None] = Future()
        self.running[ended] = made

        def pass_on(answer: Future[RunProblem | None]) -> None:
            error = answer.exception()
            if error is None:
                ended.set_result(answer.result())
            elif isinstance(error, died):
                ended.set_exception(WorkerDied(str(error)))
            else:
                ended.set_result(RunProblem(f"{type(error).__name__}: {str(error).strip().splitlines()[-1:]}"))
            self.running.pop(ended, None)

        made.future().add_done_callback(pass_on)
        return ended

    def leave(self) -> None:
        """Have the runs at hand saved, if there are any, and leave the cluster; one that was started here ends."""
        if self.ray is None:
            return
        try:
            running = dict(self.running)
            for made in running.values():
                self.ray.cancel(made)  # a SIGINT for the run
            wait(running, timeout=SECONDS_TO_SAVE)
        finally:
            self.ray.shutdown()
            if self.temporary is not None:
                shutil.rmtree(self.temporary, ignore_errors=True)

    @property
    def _cpus(self) -> int:
        return self.request.spread.cpus_per_run or self.request.spread.processes_per_run

    @property
    def _threads(self) -> int:
        """CPU threads of a run."""
        if not self.address:
            return max(1, torch.get_num_threads() // self.request.jobs)
        return self.request.threads or self._cpus

    def _gpus(self, one: PlannedRun) -> float:
        asked = self.request.spread.gpus_per_run
        if asked is not None:
            return asked
        wanted = self.ray.cluster_resources().get("GPU", 0) > 0 and one.device.startswith(("auto", "cuda"))
        return self.request.spread.processes_per_run if wanted else 0

    def _join(self) -> None:
        for name, value in RAY_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        if self.address:
            _check_answer(self.address)
            how: dict[str, Any] = {"address": self.address}
        else:
            # In a short path: Ray keeps sockets there, whose names may have 107 letters.
            self.temporary = tempfile.mkdtemp(prefix="isda-ray-", dir="/tmp" if os.path.isdir("/tmp") else None)
            how = {"address": "local", "num_cpus": self.request.jobs * self._cpus, "include_dashboard": False}
            how |= {"object_store_memory": OBJECT_STORE_BYTES, "_temp_dir": self.temporary}
        before = signal.getsignal(signal.SIGTERM)
        import ray

        self.ray = ray
        try:
            ray.init(**how, logging_level=logging.ERROR, log_to_driver=False)
        except SystemExit as ended:  # what Ray makes of a SIGTERM
            raise Stopped("stopped by SIGTERM before a run was begun") from ended
        except Exception as error:  # Ray has no class for it
            where = f"at {self.address}" if self.address else "on this machine"
            hint = "; is it of the same version, and does it want a token (RAY_AUTH_TOKEN)?" if self.address else ""
            raise OSError(f"Ray could not be used {where}: {str(error).strip().splitlines()[0]}{hint}") from error
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
        # Its news of dead workers go to the standard output, where tables and JSON go.
        ray._private.worker._worker_logs_enabled = False

    def _check_room(self, gpus: float) -> None:
        """Complain of runs that no machine has room for, which would wait for ever."""
        machines = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        if any(has.get("CPU", 0) >= self._cpus and has.get("GPU", 0) >= gpus for has in machines):
            return
        if not self.address:
            there = max((has.get("GPU", 0) for has in machines), default=0)
            raise ValueError(f"gpus_per_run must be at most {there:g}, the GPUs that Ray finds here, got {gpus:g}")
        warnings.warn(
            f"no machine of the cluster has {self._cpus} CPUs and {gpus:g} GPUs now; the runs wait for one",
            stacklevel=2,
        )


def _check_answer(address: str) -> None:
    """Raise an OSError if nobody answers; Ray would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"the address of a Ray cluster must be HOST:PORT or ray://HOST:PORT, got {address!r}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), SECONDS_TO_ANSWER).close()
    except (OSError, UnicodeError) as error:
        raise OSError(f"no Ray cluster answers at {address}: {error}") from error


def _work(
    packed: bytes, directory: str, surroundings: Mapping[str, str], threads: int, processes: int
) -> RunProblem | None:
    """Make a run in a worker of the cluster."""
    try:
        os.chdir(directory)
    except OSError as error:
        return RunProblem(f"{socket.gethostname()} must see the folders of the machine that asks: {error}")
    os.environ.update(surroundings)
    folders = [*surroundings.get("PYTHONPATH", "").split(os.pathsep), directory]
    sys.path += [folder for folder in folders if folder and folder not in sys.path]
    one: PlannedRun = pickle.loads(packed)  # of the process that asks, as all that Ray hands over
    use_plain_warnings()
    torch.set_num_threads(threads)
    _wait_until_free(one.folder)
    return run_in_processes(processes, one, threads)


def _wait_until_free(folder: Path) -> None:
    """What a dead worker has started saves the run and ends; another machine may learn of the end of its lock late."""
    deadline = time.monotonic() + SECONDS_TO_SAVE
    while time.monotonic() < deadline:
        with suppress(FolderInUse), folder_lock(folder):
            return
        time.sleep(0.5)
