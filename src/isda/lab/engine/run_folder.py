"""The files of a run, and the lock that admits one writer per folder.

A folder holds configuration, environment, metrics, checkpoints, result and final weights.
"""

from __future__ import annotations

import json
import os
import platform
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from isda import __version__
from isda.lab.engine.checkpoint import Checkpoints, write_tensors
from isda.lab.engine.config import RunConfig
from isda.lab.engine.processes import Processes
from isda.lab.files import atomic_write, json_text, read_json, write_text


class FolderInUse(ValueError):
    """Another process is writing into the folder."""


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Lock a folder, which is created, while the block runs; the operating system releases it if the process is killed.

    Raises:
        FolderInUse: another process holds the lock.
        OSError: the folder cannot be created or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock", timeout=0)
        lock.acquire()
    except Timeout:
        raise FolderInUse(f"{folder} is being written by another process; wait for it, or stop it first") from None
    except OSError as error:
        raise OSError(f"the run folder {folder} could not be created: {error}") from error
    try:
        yield
    finally:
        lock.release()


CONFIG_FILE = "config.json"
ERROR_FILE = "error.txt"
"""The traceback of a failed run; removed when the run is resumed."""


class RunFolder:
    """Paths, reading and writing of the files of a run.

    Args:
        path: the folder.
        keep: how many checkpoints to keep.
    """

    def __init__(self, path: Path, keep: int = 2) -> None:
        self.path = path
        self.config_file = path / CONFIG_FILE
        self.environment_file = path / "environment.json"
        self.metrics_file = path / "metrics.jsonl"
        self.result_file = path / "result.json"
        self.weights_file = path / "model.safetensors"
        self.checkpoints = Checkpoints(path / "checkpoints", keep)

    @property
    def started(self) -> bool:
        """Whether there is a run to resume."""
        return self.config_file.is_file()

    @property
    def finished(self) -> bool:
        """Whether the run is finished."""
        return self.result_file.is_file()

    def begin(self, config: RunConfig, processes: Processes) -> None:
        """Write the configuration and the environment.

        Raises:
            ValueError: the folder holds a run with other settings.
            OSError: the folder cannot be written to.
        """
        if self.started:
            self.check_resumable(config)
        (self.path / ERROR_FILE).unlink(missing_ok=True)
        environment = _environment(processes)
        if self.started and self.environment_file.is_file():
            started = read_json(self.environment_file).get("started")
            environment = environment | {"started": started, "resumed": environment["started"]}
        write_text(self.environment_file, json_text(environment, indent=1) + "\n")
        if not self.started:
            write_text(self.config_file, config.as_json())

    def check_resumable(self, config: RunConfig) -> None:
        """Raise a ValueError unless the run in the folder was started with the same configuration."""
        stored = type(config).read(self.config_file)
        differences = stored.differences(config)
        changes = [message for name, message in config.change_messages.items() if any(differences.pop(name, ())[:1])]
        if changes and "data" not in differences:
            raise ValueError(f"{self.path}: {'; '.join(changes)}; choose another folder for this one")
        if differences:
            listed = ", ".join(f"{name}={before!r}, not {now!r}" for name, (before, now) in differences.items())
            raise ValueError(f"{self.path} holds a run with {listed}; choose another folder for this one")

    def keep_traceback(self, error: Exception, rank: int) -> None:
        """Append the traceback of an error that ended the run to those of the run's other processes."""
        # The folder may be the reason of the failure, such as a full disk.
        with suppress(OSError), (self.path / ERROR_FILE).open("a", encoding="utf-8") as file:
            file.write(f"Process {rank}, {_now()}\n{''.join(traceback.format_exception(error))}\n")

    def append_metrics(self, metrics: dict[str, Any]) -> None:
        """Add one line."""
        with self.metrics_file.open("a", encoding="utf-8") as file:
            file.write(json_text(metrics) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def write_metrics(self, lines: Sequence[dict[str, Any]]) -> None:
        """Replace the metrics file."""
        write_text(self.metrics_file, "".join(json_text(metrics) + "\n" for metrics in lines))

    def read_metrics(self) -> list[dict[str, Any]]:
        """The metrics of all epochs, without an incomplete last line."""
        content = self.metrics_file.read_bytes() if self.metrics_file.is_file() else b""
        try:
            return [json.loads(line) for line in content.splitlines(keepends=True) if line.endswith(b"\n")]
        except ValueError as error:
            raise ValueError(f"{self.metrics_file} is damaged: {error}") from error

    def read_result(self) -> dict[str, Any]:
        """The content of result.json."""
        return read_json(self.result_file)

    def finish(self, result: dict[str, Any], weights: dict[str, Tensor]) -> None:
        """Write the final weights and then the result, whose file marks the run as finished."""
        with atomic_write(self.weights_file) as unfinished:
            write_tensors(weights, unfinished)
        write_text(self.result_file, json_text(result, indent=1) + "\n")


def _environment(processes: Processes) -> dict[str, Any]:
    return {
        "isda": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": f"{platform.system()} {platform.machine()}",
        "device": processes.device_name,
        "processes": processes.world,
        "threads": torch.get_num_threads(),
        "started": _now(),
    }


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
