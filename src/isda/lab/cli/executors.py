"""Open the executor that the options name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from isda.lab.cli.console import exit_stopped
from isda.lab.cli.runtime_options import RuntimeOptions
from isda.lab.engine.executors.runs import Execution, ExecutorOptions, open_execution


@contextmanager
def command_execution(options: ExecutorOptions, runtime: RuntimeOptions, folder: Path) -> Iterator[Execution]:
    """The executor that the options name; the command exits if its runs are stopped.

    Args:
        options: executor and number of parallel runs.
        runtime: its threads are those of each run on a cluster.
        folder: of all runs.
    """
    from isda.lab.engine.processes import Stopped

    try:
        with open_execution(options, folder, runtime.threads) as execution:
            yield execution
    except Stopped as stopped:
        exit_stopped(stopped)
