"""The small runs on scikit-learn's digits that the tests of training share: a few steps per epoch, well under a second.

As a module: the settings, configurations and jobs of a supervised run; tests/semi_runs.py has a semi-supervised one.
"""

from __future__ import annotations

import contextlib
import io
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from isda.lab.cli import main
from isda.lab.data import DataSet, load
from isda.lab.engine import RunContext
from isda.lab.tasks.classification.task import ClassificationJob
from isda.lab.train import Classification, Config, Processes, Settings, resolve

SMALL: dict[str, Any] = {"network": "fast-cnn", "width": 0.25, "labels": 100, "batch_size": 20, "epochs": 2}
SMALL_WORDS = [word for name, value in SMALL.items() for word in (f"--{name.replace('_', '-')}", str(value))]
ALONE = Processes(0, 1, torch.device("cpu"))
HERE = RunContext(ALONE, Path("not-there"))


@lru_cache(maxsize=1)
def digits() -> DataSet:
    """The data set of the small run."""
    return load("digits")


def small_config(**changes: Any) -> Config:
    """The configuration of the small run, with other settings where they are given."""
    return resolve(Settings(**(SMALL | changes)), digits())


def small_job(**changes: Any) -> ClassificationJob:
    """The small run, before its first step."""
    job = Classification().start(small_config(**changes), digits(), HERE)
    assert isinstance(job, ClassificationJob)
    return job


def isda(*words: object) -> tuple[str, str, str | int | None]:
    """What a command of the command line prints, its complaints, and how it exits: None for success."""
    out, err = io.StringIO(), io.StringIO()
    code: str | int | None = None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([str(word) for word in words])
        except SystemExit as ended:
            code = ended.code
    return out.getvalue(), err.getvalue(), code


def train_small(folder: Path, *words: object) -> tuple[str, str, str | int | None]:
    """`isda train` with the small run's settings."""
    return isda("train", *SMALL_WORDS, "--out", folder, *words)
