"""Small semi-supervised runs on scikit-learn's digits that the tests share: 6 steps per epoch, well under a second."""

from __future__ import annotations

from typing import Any

from isda.lab.tasks.semi_supervised.settings import SemiConfig
from isda.lab.tasks.semi_supervised.task import SemiSupervisedJob
from isda.lab.train import SemiSettings, SemiSupervisedClassification, resolve
from small_runs import HERE, digits

SEMI: dict[str, Any] = {
    "network": "fast-cnn",
    "width": 0.1,
    "labels": 50,
    "unlabelled": 200,
    "batch_size": 40,
    "labelled_per_batch": 12,
    "epochs": 3,
}
SEMI_WORDS = [word for name, value in SEMI.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def semi_config(**changes: Any) -> SemiConfig:
    """The configuration of the small run, with other settings where they are given."""
    config = resolve(SemiSettings(**(SEMI | changes)), digits())
    assert isinstance(config, SemiConfig)
    return config


def semi_job(**changes: Any) -> SemiSupervisedJob:
    """The small run, before its first step."""
    job = SemiSupervisedClassification().start(semi_config(**changes), digits(), HERE)
    assert isinstance(job, SemiSupervisedJob)
    return job
