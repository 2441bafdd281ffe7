"""Read run folders: finished and unfinished runs for reports, and the weights of finished runs."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from isda.lab.engine.config import Figure, RunConfig, read_config
from isda.lab.engine.run_folder import CONFIG_FILE, RunFolder
from isda.lab.files import read_json

MAX_LISTED = 20
"""Runs in a message."""
TUNE_FILE, SEARCH_FOLDER = "tune.json", "search"
"""In the folder of a search: its results, and its runs."""


@dataclass(frozen=True)
class RunRecord:
    """One run folder; `metrics` has one record per epoch, `result` is None until the run is finished."""

    folder: Path
    config: RunConfig
    """The settings that all tasks share; those of the task are in `stored`."""
    stored: dict[str, Any]
    """The content of config.json."""
    environment: dict[str, Any]
    metrics: tuple[dict[str, Any], ...]
    result: dict[str, Any] | None

    @property
    def seed(self) -> int:
        """The seed; runs with the same seed are paired."""
        return self.config.seed

    @property
    def method(self) -> str:
        """The method's name without its options."""
        return self.config.method

    @property
    def method_options(self) -> dict[str, Any]:
        """The method's options that are set."""
        return {key: value for key, value in self.config.method_options.items() if value is not None}

    @property
    def is_baseline(self) -> bool:
        """Whether other methods are compared to this one."""
        return self.method in self.config.baselines

    @property
    def epoch(self) -> int:
        """The last epoch with metrics; 0 before the first."""
        return int(self.metrics[-1]["epoch"]) if self.metrics else 0

    @property
    def headline(self) -> Figure:
        """The figure that runs are compared by."""
        return self.config.figures[0]

    @property
    def value(self) -> float | None:
        """The headline figure of a finished run."""
        return None if self.result is None else float(self.result[self.headline.name])

    def curve(self, metric: str) -> list[tuple[int, float]]:
        """(epoch, value) of one metric where it was recorded and is finite."""
        return [
            (int(record["epoch"]), float(record[metric]))
            for record in self.metrics
            if is_number(record.get(metric)) and math.isfinite(record[metric])
        ]


def is_number(value: Any) -> bool:
    """Whether a JSON value is a number; true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def find_runs(paths: Iterable[Path]) -> list[RunRecord]:
    """The runs in folders, each once, in the order of the paths and of the numbers in folder names.

    Args:
        paths: run folders, and folders that hold run folders at any depth.

    Raises:
        ValueError: a path without a run, or a run that cannot be read.
    """
    unique: dict[Path, Path] = {}
    for path in paths:
        if not path.is_dir():
            reason = "is a file" if path.exists() else "does not exist"
            raise ValueError(f"runs must be folders, got {path}, which {reason}")
        folders = list(run_folders(path))
        if not folders:
            raise ValueError(f"no run in {path}: a run folder holds {CONFIG_FILE}")
        for folder in folders:
            unique.setdefault(folder.resolve(), folder)
    if not unique:
        raise ValueError("runs must name at least one folder, got none")
    return [read_run(folder) for folder in unique.values()]


def run_folders(top: Path) -> Iterable[Path]:
    """The run folders at and below a folder, in the order of the numbers in their names."""
    for folder, below, files in os.walk(top):
        if CONFIG_FILE in files:
            # Folders in a run folder, such as checkpoints, are not runs.
            below.clear()
            yield Path(folder)
        if TUNE_FILE in files and SEARCH_FOLDER in below:
            # The trials of a search are not results.
            below.remove(SEARCH_FOLDER)
        below.sort(key=_natural)


def _natural(name: str) -> list[tuple[int, str]]:
    """A sorting key that puts seed-2 before seed-10."""
    return [(int(word), "") if word.isdecimal() else (-1, word) for word in re.split(r"(\d+)", name)]


def read_run(folder: Path) -> RunRecord:
    """Read one run folder.

    Raises:
        ValueError: a file is missing or damaged.
    """
    run = find_run(Path(folder))
    stored = read_config(run.config_file)
    config = RunConfig.from_stored(stored, run.config_file)
    if not config.figures:
        raise ValueError(f"{run.config_file} must name at least one figure, got none")
    return RunRecord(
        folder=run.path,
        config=config,
        stored=stored,
        environment=read_json(run.environment_file) if run.environment_file.is_file() else {},
        metrics=_last_of_each_epoch(run.read_metrics()),
        result=_read_result(run, config.figures[0]) if run.finished else None,
    )


def _read_result(run: RunFolder, headline: Figure) -> dict[str, Any]:
    result = run.read_result()
    value = result.get(headline.name)
    if not is_number(value) or not math.isfinite(result[headline.name]):
        raise ValueError(f"{run.result_file} must have a number as {headline.name}, got {value!r}")
    return result


def _last_of_each_epoch(lines: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """A resumed run may repeat an epoch; the later record belongs to the final weights."""
    by_epoch = {int(line["epoch"]): line for line in lines}
    return tuple(by_epoch[epoch] for epoch in sorted(by_epoch))


def find_run(folder: Path) -> RunFolder:
    """The run in a folder, finished or not.

    Raises:
        ValueError: there is none; the message lists the runs in folders below.
    """
    run = RunFolder(folder)
    if run.started:
        return run
    if not folder.is_dir():
        raise ValueError(f"no run in {folder}: it {'is a file' if folder.exists() else 'does not exist'}")
    below = [path.as_posix() for path in islice(run_folders(folder), MAX_LISTED + 1)]
    if below:
        more = " ..." if len(below) > MAX_LISTED else ""
        raise ValueError(f"{folder} is not a run but holds runs; name one: {', '.join(below[:MAX_LISTED])}{more}")
    raise ValueError(f"no run in {folder}: a run folder holds {CONFIG_FILE}")


def open_finished_run(folder: Path) -> tuple[RunFolder, dict[str, Any]]:
    """A finished run, and the content of its config.json.

    Raises:
        ValueError: there is no run, or it is not finished.
    """
    run = find_run(folder)
    if not run.finished:
        raise ValueError(f"the run in {folder} is not finished; resume it with its command and --resume")
    return run, read_config(run.config_file)


def check_task(run: RunFolder, stored: Mapping[str, Any], task: str, what: str) -> None:
    """Raise a ValueError unless a run is of a task, whose runs train ``what``."""
    if stored.get("task") != task:
        raise ValueError(f"{run.config_file} must be of {what}, got the task {stored.get('task')!r}")


@contextmanager
def config_errors(run: RunFolder, what: str = "network") -> Iterator[None]:
    """Turn errors in the block, which builds what the configuration of a run describes, into a ValueError."""
    try:
        yield
    except (ValueError, TypeError, RuntimeError, KeyError) as error:
        raise ValueError(f"{run.config_file} does not describe a valid {what}: {error}") from error


def load_weights(run: RunFolder, network: nn.Module, name: str) -> None:
    """Load the final weights of a run into a network.

    Raises:
        ValueError: they are damaged, or of another network than ``name``.
    """
    from isda.lab.networks.weight_files import check_weight_values  # a report reads records without networks

    try:
        weights = load_file(run.weights_file)
        check_weight_values(weights, network.state_dict(), "it")
        network.load_state_dict(weights)
    except (SafetensorError, RuntimeError, OSError, ValueError) as error:
        # torch's message has several lines.
        reason = " ".join(str(error).split())
        raise ValueError(f"{run.weights_file} does not hold the weights of {name}: {reason}") from error
