"""A finished run for the tests that only look at one."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_runs import digits, small_config

from isda.train import train


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small run that came to its end; tests must not change it."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    train(small_config(), digits(), folder)
    return folder
