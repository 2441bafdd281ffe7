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
from isda.lab.engine.executors import (
    FORWARDED_VARIABLES,
    ExecutorRequest,
    PlannedRun,
    RunProblem,
    Watcher,
    WorkerDied,
    WorkerExecutor,
)
from isda.lab.engine.executors.worker import run_in_processes
from isda.lab.engine.processes import Stopped, raise_stopped
from isda.lab.engine.run_folder import FolderInUse, folder_lock

ACCEPTED_OPTIONS = ("address", "cpus_per_run", "gpus_per_run")
# Time for current runs to save when all is stopped, and for a dead worker's processes to release a folder.
SECONDS_TO_SAVE = 60.0
SECONDS_TO_ANSWER = 10.0
# Ray keeps results in shared memory; those of runs are sentences.
OBJECT_STORE_BYTES = 80 << 20
# Send no usage statistics, and print no warning about GPUs that are not requested.
RAY_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


@contextmanager
def open_executor(request: ExecutorRequest) -> Iterator[WorkerExecutor]:
    """Tasks of a Ray cluster, which is joined or started with the first runs, and left at the end."""
    if find_spec("ray") is None:
        raise ValueError(f"--on ray needs {missing_message('ray')}")
    executor = _RayExecutor(request)
    # Runs are cancelled in `leave`: a signal may come while this process communicates with the cluster.
    with raise_stopped(lambda: None):
        try:
            yield executor
        finally:
            executor.leave()


class _RayExecutor(WorkerExecutor):
    def __init__(self, request: ExecutorRequest) -> None:
        self.request = request
        self.address = request.address or os.environ.get("RAY_ADDRESS", "")
        self.jobs = request.options.jobs if self.address else request.jobs
        self.ray: Any = None
        self.running: dict[Future[RunProblem | None], Any] = {}
        self.temporary: str | None = None

    def run(self, planned: Sequence[PlannedRun], watcher: Watcher) -> dict[Path, RunProblem]:
        if self.ray is None:
            self._join()
        self._check_room(max((self._gpus(run) for run in planned), default=0))
        return super().run(planned, watcher)

    def submit(self, run: PlannedRun) -> Future[RunProblem | None]:
        died = (
            self.ray.exceptions.WorkerCrashedError,
            self.ray.exceptions.NodeDiedError,
            self.ray.exceptions.OutOfMemoryError,
        )
        task = self.ray.remote(_work).options(num_cpus=self._cpus, num_gpus=self._gpus(run), max_retries=0)
        environment = {name: os.environ[name] for name in FORWARDED_VARIABLES if name in os.environ}
        packed = self.ray.cloudpickle.dumps(run)  # unpacked after the worker has set its path, for user-defined tasks
        remote = task.remote(packed, os.getcwd(), environment, self._threads, self.request.options.processes_per_run)
        result: Future[RunProblem | None] = Future()
        self.running[result] = remote

        def forward(answer: Future[RunProblem | None]) -> None:
            error = answer.exception()
            if error is None:
                result.set_result(answer.result())
            elif isinstance(error, died):
                result.set_exception(WorkerDied(str(error)))
            else:
                result.set_result(RunProblem(f"{type(error).__name__}: {str(error).strip().splitlines()[-1:]}"))
            self.running.pop(result, None)

        remote.future().add_done_callback(forward)
        return result

    def leave(self) -> None:
        """Save the current runs, if there are any, and leave the cluster; one that was started here is shut down."""
        if self.ray is None:
            return
        try:
            running = dict(self.running)
            for remote in running.values():
                self.ray.cancel(remote)  # sends SIGINT
            wait(running, timeout=SECONDS_TO_SAVE)
        finally:
            self.ray.shutdown()
            if self.temporary is not None:
                shutil.rmtree(self.temporary, ignore_errors=True)

    @property
    def _cpus(self) -> int:
        return self.request.options.cpus_per_run or self.request.options.processes_per_run

    @property
    def _threads(self) -> int:
        """CPU threads of a run."""
        if not self.address:
            return max(1, torch.get_num_threads() // self.request.jobs)
        return self.request.threads or self._cpus

    def _gpus(self, run: PlannedRun) -> float:
        options = self.request.options
        if options.gpus_per_run is not None:
            return options.gpus_per_run
        use_gpus = self.ray.cluster_resources().get("GPU", 0) > 0 and run.device.startswith(("auto", "cuda"))
        return options.processes_per_run if use_gpus else 0

    def _join(self) -> None:
        for name, value in RAY_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        if self.address:
            _check_answer(self.address)
            arguments: dict[str, Any] = {"address": self.address}
        else:
            # In a short path: the names of Ray's sockets in it are limited to 107 characters.
            self.temporary = tempfile.mkdtemp(prefix="isda-ray-", dir="/tmp" if os.path.isdir("/tmp") else None)
            arguments = {"address": "local", "num_cpus": self.request.jobs * self._cpus, "include_dashboard": False}
            arguments |= {"object_store_memory": OBJECT_STORE_BYTES, "_temp_dir": self.temporary}
        before = signal.getsignal(signal.SIGTERM)
        import ray

        self.ray = ray
        try:
            ray.init(**arguments, logging_level=logging.ERROR, log_to_driver=False)
        except SystemExit as error:  # raised by Ray after SIGTERM
            raise Stopped("stopped by SIGTERM before a run was started") from error
        except Exception as error:  # Ray has no class for it
            where = f"at {self.address}" if self.address else "on this machine"
            hint = "; is it of the same version, and does it need a token (RAY_AUTH_TOKEN)?" if self.address else ""
            raise OSError(f"Ray could not be used {where}: {str(error).strip().splitlines()[0]}{hint}") from error
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
        # Ray would report dead workers on the standard output, among tables and JSON.
        ray._private.worker._worker_logs_enabled = False

    def _check_room(self, gpus: float) -> None:
        """Report runs that no machine has room for, which would wait forever."""
        machines = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        if any(machine.get("CPU", 0) >= self._cpus and machine.get("GPU", 0) >= gpus for machine in machines):
            return
        if not self.address:
            available = max((machine.get("GPU", 0) for machine in machines), default=0)
            raise ValueError(f"gpus_per_run must be at most {available:g}, the GPUs that Ray finds here, got {gpus:g}")
        warnings.warn(
            f"no machine of the cluster has {self._cpus} CPUs and {gpus:g} GPUs now; the runs wait for one",
            stacklevel=2,
        )


def _check_answer(address: str) -> None:
    """Raise an OSError if there is no answer; Ray would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"the address of a Ray cluster must be HOST:PORT or ray://HOST:PORT, got {address!r}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), SECONDS_TO_ANSWER).close()
    except (OSError, UnicodeError) as error:
        raise OSError(f"no Ray cluster answers at {address}: {error}") from error


def _work(
    packed: bytes, directory: str, environment: Mapping[str, str], threads: int, processes: int
) -> RunProblem | None:
    try:
        os.chdir(directory)
    except OSError as error:
        return RunProblem(f"{socket.gethostname()} must share the folders of the submitting machine: {error}")
    os.environ.update(environment)
    folders = [*environment.get("PYTHONPATH", "").split(os.pathsep), directory]
    sys.path += [folder for folder in folders if folder and folder not in sys.path]
    run: PlannedRun = pickle.loads(packed)  # from the submitting process, as everything that Ray passes
    use_plain_warnings()
    torch.set_num_threads(threads)
    _wait_until_free(run.folder)
    return run_in_processes(processes, run, threads)


def _wait_until_free(folder: Path) -> None:
    """Wait until the processes of a dead worker have saved the run and released the lock of its folder."""
    deadline = time.monotonic() + SECONDS_TO_SAVE
    while time.monotonic() < deadline:
        with suppress(FolderInUse), folder_lock(folder):
            return
        time.sleep(0.5)
