"""Runs of pytest in forked children of a process that has imported everything but isda: they start at once."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from packages import ROOT

_SLOW_IMPORTS = (
    "torch",
    "torch.distributed",
    "torch.utils.checkpoint",
    "torch.utils.flop_counter",
    "torchvision.transforms.v2",
    "hypothesis.strategies",
    "numpy",
    "safetensors.torch",
    "scipy.stats",
    "scipy.optimize",
    "sklearn.datasets",
    "timm",
    "transformers",
    "tyro",
    "rich.progress",
    "matplotlib.figure",
    "tensorboard",
)
_MEMORY = 6 * 2**30
"""Bytes that a child may take: a mutant must not take the machine down."""


def import_the_slow() -> None:
    """Import once what every child needs."""
    for name in _SLOW_IMPORTS:
        importlib.import_module(name)


def run_pytest(
    files: list[str],
    source: Path,
    plugin: object,
    result: Callable[[], Any],
    timeout: float,
    *,
    stop_at_failure: bool = False,
) -> Any:
    """Run test files in a child with the isda of the folder ``source``, and return what ``result`` says there.

    Raises:
        TimeoutError: it took longer than ``timeout`` seconds and was ended.
        ChildProcessError: it ended without a result.
    """
    options = ["-m", "not slow", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=line", "--durations=0"]
    options += ["-x"] if stop_at_failure else []
    with tempfile.TemporaryDirectory(prefix="mutant-", ignore_cleanup_errors=True) as scratch:
        answer = Path(scratch) / "answer.json"
        child = os.fork()
        if child == 0:
            _become_child(source, Path(scratch) / "output.txt")
            pytest.main([*files, *options, f"--basetemp={scratch}/tests"], plugins=[plugin])
            answer.write_text(json.dumps(result()))
            os._exit(0)
        _wait(child, timeout)
        if not answer.is_file():
            raise ChildProcessError((Path(scratch) / "output.txt").read_text()[-2000:])
        return json.loads(answer.read_text())


def _become_child(source: Path, output: Path) -> None:
    """A session, an output, a limit of memory and sources of its own; any error from now on ends the process."""
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    file = os.open(output, os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(file, stream)
    sys.excepthook = lambda *error: (traceback.print_exception(*error), os._exit(1))
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    os.chdir(ROOT)
    sys.path.insert(0, str(source))
    os.environ["PYTHONPATH"] = str(source)


def _wait(child: int, timeout: float) -> None:
    """Wait for the child, then end it, if need be, and everything that it started."""
    deadline = time.monotonic() + timeout
    try:
        while os.waitpid(child, os.WNOHANG)[0] == 0:
            if time.monotonic() > deadline:
                raise TimeoutError(f"longer than {timeout:.0f} s")
            time.sleep(0.02)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
