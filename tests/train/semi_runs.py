"""Small semi-supervised runs on scikit-learn's digits that the tests share: 6 steps per epoch, well under a second."""

from __future__ import annotations

from typing import Any

from small_runs import ALONE, digits

from isda.semi import NAMES
from isda.train import Config, Settings, resolve
from isda.train.trainer import Trainer

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

# Pseudo labels of networks that have hardly begun to learn do not reach FixMatch's threshold.
WRITTEN = {name: f"{name}:threshold=0.15" if name.startswith("fixmatch") else name for name in NAMES}


def semi_config(**changes: Any) -> Config:
    """The configuration of the small run, with other settings where they are given."""
    return resolve(Settings(**(SEMI | changes)), digits())


def semi_trainer(**changes: Any) -> Trainer:
    """A trainer of the small run, before its first step."""
    return Trainer(semi_config(**changes), digits(), ALONE)
