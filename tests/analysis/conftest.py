"""Small runs to look into, and sets of features that nobody trained a network for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from isda.lab.analysis import Observed, observe
from isda.lab.cli import main

SETTINGS = {"labels": 60, "epochs": 1, "width": 0.25, "batch-size": 20, "lambda-0": 1, "threads": 1}
WORDS = [word for name, value in SETTINGS.items() for word in (f"--{name}", str(value))]


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on 60 digits; tests must not change it."""
    folder = tmp_path_factory.mktemp("looked-into") / "run"
    main(["train", *WORDS, "--out", str(folder)])
    return folder


@pytest.fixture(scope="session")
def other_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another network on the same data."""
    folder = tmp_path_factory.mktemp("another") / "run"
    main(["train", *WORDS, "--seed", "1", "--out", str(folder)])
    return folder


@pytest.fixture(scope="session")
def seen(small_run: Path) -> Observed:
    """What the network of the small run makes of its images."""
    return observe(small_run)


@pytest.fixture
def with_features(seen: Observed) -> Callable[[Tensor, Tensor], Observed]:
    """The same run with other features and labels of as many images."""

    def changed(features: Tensor, labels: Tensor) -> Observed:
        width = features.shape[1]
        weight = torch.randn(len(seen.classes), width, dtype=torch.float64)
        rows = torch.arange(len(labels)) % len(seen.indices)
        return replace(seen, features=features, labels=labels, indices=seen.indices[rows], weight=weight)

    return changed
