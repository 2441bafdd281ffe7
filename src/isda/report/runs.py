"""Reading run folders: what `isda train` wrote, finished or not.

Only files are read, so a report can be made while runs are going on and of runs from other machines.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["RunRecord", "find_runs", "is_number", "read_run"]

CONFIG = "config.json"
FORMAT = 1
REQUIRED = ("data", "network", "method", "seed", "scale", "epochs")


@dataclass(frozen=True)
class RunRecord:
    """One run folder; `metrics` has one record per epoch, `result` is None until the run is finished."""

    folder: Path
    config: dict[str, Any]
    environment: dict[str, Any]
    metrics: tuple[dict[str, Any], ...]
    result: dict[str, Any] | None

    @property
    def seed(self) -> int:
        """The seed; runs with the same seed are paired."""
        return int(self.config["seed"])

    @property
    def method(self) -> str:
        """The method's name without its options."""
        return str(self.config["method"])

    @property
    def method_options(self) -> dict[str, Any]:
        """The method's options that are set."""
        return {key: value for key, value in (self.config.get("method_options") or {}).items() if value is not None}

    @property
    def epochs(self) -> int:
        """How many epochs were asked for."""
        return int(self.config["epochs"])

    @property
    def epoch(self) -> int:
        """The last epoch with metrics; 0 before the first."""
        return int(self.metrics[-1]["epoch"]) if self.metrics else 0

    def curve(self, key: str) -> list[tuple[int, float]]:
        """(epoch, value) of one metric where it was recorded and is finite."""
        return [
            (int(record["epoch"]), float(record[key]))
            for record in self.metrics
            if is_number(record.get(key)) and math.isfinite(record[key])
        ]


def is_number(value: Any) -> bool:
    """Whether a JSON value is a number; true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def find_runs(paths: Iterable[Path]) -> list[RunRecord]:
    """The runs at and below the paths, each once, in the order of the paths and of the numbers in folder names.

    Args:
        paths: run folders, and folders that hold run folders at any depth.

    Raises:
        ValueError: a path without a run, or a run that cannot be read.
    """
    found: dict[Path, Path] = {}
    for path in paths:
        if not path.is_dir():
            raise ValueError(f"runs must be folders, got {path}, which is {'a file' if path.exists() else 'not there'}")
        folders = list(_run_folders(path))
        if not folders:
            raise ValueError(f"no run in {path}: a run folder holds {CONFIG}")
        for folder in folders:
            found.setdefault(folder.resolve(), folder)
    if not found:
        raise ValueError("runs must name at least one folder, got none")
    return [read_run(folder) for folder in found.values()]


def _run_folders(top: Path) -> Iterable[Path]:
    for folder, below, files in os.walk(top):
        if CONFIG in files:
            # What a run keeps below itself, such as checkpoints, is not another run.
            below.clear()
            yield Path(folder)
        below.sort(key=_natural)


def _natural(name: str) -> list[tuple[int, str]]:
    """A sorting key that puts seed-2 before seed-10."""
    return [(int(word), "") if word.isdecimal() else (-1, word) for word in re.split(r"(\d+)", name)]


def read_run(folder: Path) -> RunRecord:
    """Read one run folder.

    Raises:
        ValueError: names the file that is missing or broken and what is wrong with it.
    """
    folder = Path(folder)
    if not (folder / CONFIG).is_file():
        raise ValueError(f"no run in {folder}: a run folder holds {CONFIG}")
    config = _read_object(folder / CONFIG)
    if config.get("format") != FORMAT:
        raise ValueError(f"{folder / CONFIG} must have format {FORMAT}, got {config.get('format')}")
    missing = [key for key in REQUIRED if key not in config]
    if missing:
        raise ValueError(f"{folder / CONFIG} must name {', '.join(REQUIRED)}, got no {', '.join(missing)}")
    environment = folder / "environment.json"
    return RunRecord(
        folder=folder,
        config=config,
        environment=_read_object(environment) if environment.is_file() else {},
        metrics=_read_metrics(folder / "metrics.jsonl"),
        result=_read_result(folder / "result.json"),
    )


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(value).__name__}")
    return value


def _read_result(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    result = _read_object(path)
    error = result.get("error")
    if not is_number(error) or not math.isfinite(result["error"]):
        raise ValueError(f"{path} must have a number as error, got {error!r}")
    return result


def _read_metrics(path: Path) -> tuple[dict[str, Any], ...]:
    lines = path.read_bytes().splitlines() if path.is_file() else []
    records: dict[int, dict[str, Any]] = {}
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except ValueError as error:
            if number == len(lines):
                # The process was killed while it wrote this line.
                break
            raise ValueError(f"{path}, line {number}, is not JSON: {error}") from error
        if not isinstance(record, dict) or not is_number(record.get("epoch")):
            raise ValueError(f"{path}, line {number}, must be a JSON object with an epoch, got {line[:60]!r}")
        # A resumed run may repeat an epoch; the later record belongs to the weights that went on.
        records[int(record["epoch"])] = record
    return tuple(records[epoch] for epoch in sorted(records))
