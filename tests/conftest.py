"""Settings of the whole test suite; makes ``from oracles import ...`` work in every test file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

settings.register_profile("deterministic", derandomize=True, deadline=None, max_examples=25, database=None)
settings.load_profile("deterministic")


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    """Every test starts from the same state of the global generator."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small run that came to its end; tests must not change it."""
    from isda.train import train
    from small_runs import digits, small_config

    folder = tmp_path_factory.mktemp("finished") / "run"
    train(small_config(), digits(), folder)
    return folder
