"""The files of a run: configuration, environment, metrics, checkpoints, result and final weights."""

from __future__ import annotations

import json
import os
import platform
import warnings
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isda import __version__
from isda.train.checkpoint import Checkpoints, sync, write_tensors
from isda.train.config import Config
from isda.train.processes import Processes

__all__ = ["RunFolder", "check_resumable", "write_atomically"]


def write_atomically(path: Path, text: str) -> None:
    """Replace a file by ``text``: a reader sees the old content or the new, whatever happens in between."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        with unfinished.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise OSError(f"{path} could not be written: {error}") from error


class RunFolder:
    """The paths of a run's files and how each is written.

    Args:
        path: the folder.
        keep: how many checkpoints to keep.
    """

    def __init__(self, path: Path, keep: int = 2) -> None:
        self.path = path
        self.config_file = path / "config.json"
        self.environment_file = path / "environment.json"
        self.metrics_file = path / "metrics.jsonl"
        self.result_file = path / "result.json"
        self.weights_file = path / "model.safetensors"
        self.tensorboard = path / "tensorboard"
        self.checkpoints = Checkpoints(path / "checkpoints", keep)

    @property
    def started(self) -> bool:
        """Whether there is a run to resume."""
        return self.config_file.is_file()

    @property
    def finished(self) -> bool:
        """Whether the run has come to its end."""
        return self.result_file.is_file()

    def begin(self, config: Config, processes: Processes) -> None:
        """Make the folder and say in it what the run does and where.

        Raises:
            ValueError: the folder holds a run with other settings.
            OSError: it cannot be made or written to.
        """
        if self.started:
            check_resumable(self, config)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(f"the run folder {self.path} could not be made: {error}") from error
        environment = _environment(processes)
        if self.started and self.environment_file.is_file():
            first = json.loads(self.environment_file.read_text(encoding="utf-8"))
            environment = environment | {"started": first.get("started"), "resumed": environment["started"]}
        write_atomically(self.environment_file, json.dumps(environment, indent=1) + "\n")
        if not self.started:
            write_atomically(self.config_file, config.as_json())

    def complain(self, sentence: str) -> None:
        """Say that something is amiss, where the user looks and in the run folder."""
        warnings.warn(sentence, stacklevel=2)
        with (self.path / "complaints.txt").open("a", encoding="utf-8") as file:
            file.write(sentence + "\n")

    def append_metrics(self, metrics: dict[str, Any]) -> None:
        """Add one line."""
        try:
            with self.metrics_file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(metrics) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise OSError(f"{self.metrics_file} could not be written: {error}") from error

    def read_metrics(self) -> list[dict[str, Any]]:
        """The complete lines; the last one may have been cut short by a kill."""
        if not self.metrics_file.is_file():
            return []
        lines = self.metrics_file.read_text(encoding="utf-8").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def read_result(self) -> dict[str, Any]:
        """The content of result.json."""
        result: dict[str, Any] = json.loads(self.result_file.read_text(encoding="utf-8"))
        return result

    def rewind_metrics(self, step: int) -> None:
        """Forget epochs after ``step``, from where the run continues and will write them again."""
        if self.metrics_file.exists():
            kept = [metrics for metrics in self.read_metrics() if metrics["step"] <= step]
            write_atomically(self.metrics_file, "".join(json.dumps(metrics) + "\n" for metrics in kept))

    def finish(self, result: dict[str, Any], weights: dict[str, Tensor]) -> None:
        """Write the final weights and then the result, which marks the run as finished."""
        unfinished = self.weights_file.with_name(f".{self.weights_file.name}.unfinished")
        try:
            write_tensors(weights, unfinished)
            sync(unfinished)
            os.replace(unfinished, self.weights_file)
        except Exception as error:
            unfinished.unlink(missing_ok=True)
            raise OSError(f"{self.weights_file} could not be written: {error}") from error
        write_atomically(self.result_file, json.dumps(result, indent=1) + "\n")


def check_resumable(run: RunFolder, config: Config) -> None:
    """Raise a ValueError unless the run in a folder was started with the same configuration."""
    differences = Config.read(run.config_file).differences(config)
    if differences:
        listed = ", ".join(f"{name}={stored!r}, not {asked!r}" for name, (stored, asked) in differences.items())
        raise ValueError(f"{run.path} holds a run with {listed}; choose another folder for this one")


def _environment(processes: Processes) -> dict[str, Any]:
    device = processes.device
    return {
        "isda": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": f"{platform.system()} {platform.machine()}",
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "processes": processes.world,
        "threads": torch.get_num_threads(),
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
