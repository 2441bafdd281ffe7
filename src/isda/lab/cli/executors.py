"""Open the executor that the options name; the command ``isda run``."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import tyro

from isda._utils.errors import is_package_error
from isda._utils.files import write_text
from isda.lab.cli.console import COMMAND_WORDS, exit_stopped
from isda.lab.cli.runtime_options import RuntimeOptions
from isda.lab.engine.executors import Executor, ExecutorOptions, ExecutorRequest, RunsDeferred, open_executor

_EXECUTOR_FLAGS = ("--on", "--sbatch", "--cpus-per-run", "--gpus-per-run")


@contextmanager
def command_executor(
    options: ExecutorOptions,
    runtime: RuntimeOptions,
    folder: Path,
    max_runs: int | None = None,
    sequential: bool = False,
) -> Iterator[Executor]:
    """Open the executor that the options name; the command exits if its runs are stopped or deferred.

    Args:
        options: executor and number of parallel runs.
        runtime: its threads are those of each run on a cluster.
        folder: of all runs.
        max_runs: the number of runs, if it is known.
        sequential: whether later runs depend on earlier ones.
    """
    from isda.lab.engine.processes import Stopped

    request = ExecutorRequest(
        options=options,
        folder=folder,
        command=("isda", *without_executor_options(COMMAND_WORDS.get())),
        threads=runtime.threads,
        max_runs=max_runs,
    )
    try:
        with open_executor(request) as executor:
            if sequential:
                executor.check_sequential()
            yield executor
    except Stopped as stopped:
        exit_stopped(stopped)
    except RunsDeferred as deferred:
        print(deferred)
        raise SystemExit(0) from None


def without_executor_options(words: Sequence[str]) -> list[str]:
    """The words of a command without the options of executors: the command that prints the table.

    Example:
        >>> without_executor_options(["compare", "--on", "slurm", "--sbatch", "partition=gpu", "--seeds", "5"])
        ['compare', '--seeds', '5']
    """
    kept: list[str] = []
    dropping = False
    for word in words:
        if word.startswith("--"):
            dropping = word.partition("=")[0].replace("_", "-") in _EXECUTOR_FLAGS
        if not dropping:
            kept.append(word)
    return kept


def run(
    plan: tyro.conf.Positional[Path],
    number: tyro.conf.Positional[int],
    *,
    own: tuple[str, ...] = (),
    problem: Path | None = None,
) -> None:
    """Execute one run of a plan that --on slurm has written, as each element of its array job does.

    ``isda run runs/compare-digits/slurm/1f3a5c7e.json 0``

    An interrupted run is resumed, a finished one is left as it is.

    Args:
        plan: the file.
        number: of the run, from 0.
        own: your own code that the run uses; it is imported only if it is named here.
        problem: write an error to this file as JSON: a sentence, and whether the loss was NaN or infinite.
    """
    import torch

    from isda.lab.cli.output import print_escaped
    from isda.lab.engine.executors.worker import describe_problem, execute_run, read_planned
    from isda.lab.engine.processes import Stopped

    planned, threads = read_planned(plan, number, own)
    if threads is not None:
        torch.set_num_threads(threads)
    first = os.environ.get("RANK", "0") == "0"
    try:
        execute_run(planned)
    except Stopped as stopped:
        exit_stopped(stopped)
    except Exception as error:
        run_problem = describe_problem(error)
        if problem is not None and first:
            write_text(problem, json.dumps(run_problem))
        if not is_package_error(error):
            raise
        raise ValueError(f"{planned.folder}: {run_problem.sentence}") from error
    if first:
        print_escaped(f"{planned.folder} is finished")
