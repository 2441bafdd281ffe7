"""The files of a run, and the lock that admits one writer per folder.

A folder holds configuration, environment, metrics, checkpoints, result and final weights.
"""

from __future__ import annotations

import json
import os
import platform
import socket
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isda import __version__
from isda._utils.errors import traceback_text
from isda._utils.files import atomic_write, write_text
from isda.lab.engine.checkpoint import Checkpoints, write_tensors
from isda.lab.engine.config import RunConfig
from isda.lab.engine.digests import (
    content_digest,
    file_digest,
    json_text,
    read_json_object,
    read_verified,
    verified,
    with_digest,
)
from isda.lab.engine.processes import Processes

LOCK_FILE = ".lock"
OWNER_READ_ATTEMPTS = 20
"""How often to try to read who holds the lock."""


class FolderInUse(ValueError):
    """Another process is writing into the folder."""


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Lock a folder while the block runs.

    The operating system releases the lock when the process ends, even by a kill, and over NFS for all machines. The
    file stays: if it were removed, two processes could lock two files of the same name.

    Raises:
        FolderInUse: another process holds the lock; the message names it.
        OSError: the folder cannot be created or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise OSError(f"the run folder {folder} could not be created: {error}") from error
    try:
        if not _try_to_lock(descriptor):
            raise FolderInUse(f"{folder} is being written by {_owner(descriptor)}; wait for it, or stop it first")
        owner = {"process": os.getpid(), "machine": socket.gethostname(), "since": _now()}
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(owner).encode(), 0)
        try:
            yield
        finally:
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def _try_to_lock(descriptor: int) -> bool:
    if os.name != "posix":
        import msvcrt

        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        except OSError:
            return False
        return True
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _owner(descriptor: int) -> str:
    for _ in range(OWNER_READ_ATTEMPTS):
        try:
            owner = json.loads(os.pread(descriptor, 4096, 0))
            return f"process {owner['process']} on {owner['machine']} since {owner['since']}"
        except (ValueError, TypeError, KeyError):
            time.sleep(0.01)  # it may not have written its name yet
    return "another process"


CONFIG_FILE = "config.json"
FILES = "files"
"""In result.json: the digests of further files of the run, by name."""
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
        """Create the folder, and write the configuration and the environment.

        Raises:
            ValueError: the folder holds a run with other settings.
            OSError: the folder cannot be created or written to.
        """
        for file in (self.config_file, self.environment_file, self.metrics_file, self.result_file, self.weights_file):
            if file.is_dir():
                raise ValueError(f"{file} must be a file, it is a folder")
        if self.started:
            self.check_resumable(config)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(f"the run folder {self.path} could not be created: {error}") from error
        (self.path / ERROR_FILE).unlink(missing_ok=True)
        environment = _environment(processes)
        if self.started and self.environment_file.is_file():
            first = read_verified(self.environment_file)
            environment = environment | {"started": first.get("started"), "resumed": environment["started"]}
        write_text(self.environment_file, json_text(with_digest(environment), indent=1) + "\n")
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

    def warn(self, sentence: str) -> None:
        """Warn the user, and write the warning to the run folder."""
        warnings.warn(sentence, stacklevel=2)
        with (self.path / "warnings.txt").open("a", encoding="utf-8") as file:
            file.write(sentence + "\n")

    def keep_traceback(self, error: Exception, rank: int) -> None:
        """Append the traceback of an error that ended the run to those of the run's other processes."""
        # The folder may be the reason of the failure, such as a full disk.
        with suppress(OSError), (self.path / ERROR_FILE).open("a", encoding="utf-8") as file:
            file.write(f"Process {rank}, {_now()}\n{traceback_text(error)}\n")

    def append_metrics(self, metrics: dict[str, Any]) -> None:
        """Add one line."""
        try:
            with self.metrics_file.open("a", encoding="utf-8") as file:
                file.write(json_text(metrics) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise OSError(f"{self.metrics_file} could not be written: {error}") from error

    def read_metrics(self) -> list[dict[str, Any]]:
        """The metrics of all epochs, without an incomplete last line.

        Raises:
            ValueError: a line is damaged.
        """
        lines = self.metrics_file.read_bytes().splitlines() if self.metrics_file.is_file() else []
        records = []
        for number, line in enumerate(lines, start=1):
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                if number == len(lines):
                    break
                raise ValueError(f"{self.metrics_file}, line {number}, is not JSON: {error}") from error
            if not isinstance(record, dict) or not all(type(record.get(key)) is int for key in ("epoch", "step")):
                raise ValueError(
                    f"{self.metrics_file}, line {number}, must be a JSON object with epoch and step, got {line[:60]!r}"
                )
            records.append(record)
        return records

    def read_result(self) -> dict[str, Any]:
        """The content of result.json; raises a ValueError if it or the configuration was changed."""
        result = read_json_object(self.result_file)
        verified(result, self.result_file)
        if not result:
            raise ValueError(f"{self.result_file} must hold the figures of a run, got an empty object")
        if not self.config_file.is_file():
            raise ValueError(f"{self.config_file} is missing")
        if result.get("config_sha256") not in (None, self._config_digest()):
            raise ValueError(f"{self.config_file} was changed after {self.result_file.name} was written")
        return result

    def check_metrics(self, result: dict[str, Any]) -> None:
        """Raise a ValueError if the metrics of a finished run were changed."""
        if "metrics_sha256" not in result:
            return
        if not self.metrics_file.is_file():
            raise ValueError(f"{self.metrics_file} is missing")
        if result["metrics_sha256"] != self._metrics_digest():
            raise ValueError(f"{self.metrics_file} was changed after {self.result_file.name} was written")

    def write_metrics(self, lines: Sequence[dict[str, Any]]) -> None:
        """Replace the metrics file."""
        write_text(self.metrics_file, "".join(json_text(metrics) + "\n" for metrics in lines))

    def finish(self, result: dict[str, Any], weights: dict[str, Tensor]) -> None:
        """Write the final weights and then the result, whose file marks the run as finished.

        The files that ``result`` names under FILES are recorded with their digests.
        """
        with atomic_write(self.weights_file) as unfinished:
            write_tensors(weights, unfinished)
        if FILES in result:
            names = result[FILES]
            result = result | {FILES: {name: file_digest(self.path / name)["sha256"] for name in names}}
        digests = {
            "config_sha256": self._config_digest(),
            "metrics_sha256": self._metrics_digest(),
            "weights_sha256": file_digest(self.weights_file)["sha256"],
        }
        write_text(self.result_file, json_text(with_digest(result | digests), indent=1) + "\n")

    def check_weights(self, result: dict[str, Any]) -> None:
        """Raise a ValueError if the final weights were changed."""
        if not self.weights_file.is_file():
            raise ValueError("No such file")
        if result.get("weights_sha256") not in (None, file_digest(self.weights_file)["sha256"]):
            raise ValueError(f"its SHA-256 is not the one in {self.result_file.name}")

    def check_file(self, result: dict[str, Any], name: str) -> Path | None:
        """A file that the job has left for pages; None if the run has none, or it was removed.

        Raises:
            ValueError: the file was changed.
        """
        digests, path = _digests(result), self.path / name
        if name not in digests or path.is_symlink() or not path.is_file():
            return None
        if digests[name] != file_digest(path)["sha256"]:
            raise ValueError(f"{path} was changed after {self.result_file.name} was written")
        return path

    def check_finished(self) -> dict[str, Any]:
        """The result of a finished run; raises a ValueError if one of its files was changed."""
        remedy = f"remove {self.result_file} to finish the run again"
        try:
            result = self.read_result()
            self.check_metrics(result)
            for name in _digests(result):
                self.check_file(result, name)
        except ValueError as error:
            raise ValueError(f"{error}; {remedy}") from error
        try:
            self.check_weights(result)
        except ValueError as error:
            raise ValueError(f"{self.weights_file} does not hold the weights of the run: {error}; {remedy}") from error
        return result

    def _config_digest(self) -> str:
        return content_digest(read_verified(self.config_file))

    def _metrics_digest(self) -> str:
        return content_digest({"epochs": [content_digest(line) for line in self.read_metrics()]})


def _digests(result: dict[str, Any]) -> dict[str, Any]:
    """The further files of a run with their digests; anything else than names of files is left out."""
    recorded = result.get(FILES)
    files = recorded.items() if isinstance(recorded, dict) else ()
    return {name: digest for name, digest in files if Path(name).name == name}


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
