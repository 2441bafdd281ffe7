"""Settings of the whole test suite; makes ``from oracles import ...`` work in every test file.

Tests marked ``any_device`` run twice: on the CPU and on the pretend accelerator, where everything is put that they make
without naming a device. ISDA_TEST_DEVICE=cuda (or another device) runs them there instead. ISDA_TEST_ORDER=SEED runs
all tests in a random order.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

import pretend_accelerator

# A shell starts what runs in the background with Ctrl-C ignored; the commands that tests interrupt would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("deterministic", derandomize=True, deadline=None, max_examples=25, database=None)
settings.load_profile("deterministic")


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    """Every test starts from the same state of the global generator."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small run that came to its end; tests must not change it."""
    from isda.lab.train import train
    from small_runs import digits, small_config

    folder = tmp_path_factory.mktemp("finished") / "run"
    train(small_config(), digits(), folder)
    return folder


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A headless Chromium; where it is not installed the test is skipped, but fails in CI."""
    from headless_browser import headless_chromium

    with headless_chromium() as launched:
        yield launched


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Another order, the same in every worker."""
    if seed := os.environ.get("ISDA_TEST_ORDER"):
        random.Random(int(seed)).shuffle(items)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests that do not care about the device on all there are."""
    if metafunc.definition.get_closest_marker("any_device"):
        chosen = os.environ.get("ISDA_TEST_DEVICE")
        metafunc.parametrize("default_device", [chosen] if chosen else ["cpu", "pretend"], indirect=True)


@pytest.fixture(autouse=True)
def default_device(request: pytest.FixtureRequest) -> Iterator[None]:
    """Where tensors are made when the test does not say."""
    name = getattr(request, "param", "cpu")
    with ExitStack() as stack:
        if name == "pretend":
            stack.enter_context(request.getfixturevalue("accelerator"))
        if name != "cpu":
            stack.enter_context(torch.device(name))
        yield


@pytest.fixture
def accelerator() -> pretend_accelerator.PretendAccelerator:
    """The pretend device; ``with accelerator:`` puts it to use."""
    if not pretend_accelerator.AVAILABLE:
        pytest.skip("this version of torch cannot register a device in Python")
    return pretend_accelerator.PretendAccelerator()
