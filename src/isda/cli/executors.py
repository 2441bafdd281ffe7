"""Open the executor that the options name; the command ``isda run``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import tyro

from isda._utils.errors import is_package_error
from isda._utils.files import write_text
from isda._utils.text import escape_control_characters
from isda.cli.console import COMMAND_WORDS
from isda.cli.runtime_options import RuntimeOptions
from isda.engine.executors import Executor, ExecutorOptions, ExecutorRequest, RunsDeferred, open_executor
from isda.engine.executors.worker import describe_problem, execute_run, read_planned
from isda.engine.processes import Stopped

_EXECUTOR_FLAGS = ("--on", "--sbatch", "--cpus-per-run", "--gpus-per-run")


@contextmanager
def command_executor(
    spread: ExecutorOptions, machine: RuntimeOptions, folder: Path, most: int | None = None, rounds: bool = False
) -> Iterator[Executor]:
    """The pool that the options ask for; the command ends if its runs were stopped, or left to others.

    Args:
        spread: where, and how many at a time.
        machine: its threads are those of each run on a cluster.
        folder: of all runs.
        most: how many runs there will be, where that is known.
        rounds: whether later runs follow from earlier ones.
    """
    request = ExecutorRequest(
        spread=spread,
        folder=folder,
        command=("isda", *without_executor_options(COMMAND_WORDS.get())),
        threads=machine.threads,
        most=most,
    )
    try:
        with open_executor(request) as pool:
            if rounds:
                pool.check_rounds()
            yield pool
    except Stopped as stopped:
        print(f"isda: {stopped}; the same command goes on", file=sys.stderr)
        sys.exit(stopped.status)
    except RunsDeferred as told:
        print(told)
        sys.exit(0)


def without_executor_options(words: Sequence[str]) -> list[str]:
    """The words of a command without those that say where its runs are made: the command that makes the table.

    Example:
        >>> without_place(["compare", "--on", "slurm", "--sbatch", "partition=gpu", "time=1:00:00", "--seeds", "5"])
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
    """Make one run of a plan that --on slurm has written: what each element of its array job does.

    ``isda run runs/compare-digits/slurm/1f3a5c7e.json 0``

    A run that was interrupted goes on, one that is finished stays as it is.

    Args:
        plan: the file.
        number: of the run, from 0.
        own: code of your own that the run uses; it is imported only if it is named here.
        problem: also write what went wrong to this file, as JSON: a sentence, and whether the loss was not a number.
    """
    import torch

    one, threads = read_planned(plan, number, own)
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        execute_run(one)
    except Stopped as stopped:
        print(f"isda: {stopped}; the same command goes on", file=sys.stderr)
        sys.exit(stopped.status)
    except Exception as error:
        told = describe_problem(error)
        if problem is not None and os.environ.get("RANK", "0") == "0":
            write_text(problem, json.dumps(told))
        if not is_package_error(error):
            raise
        raise ValueError(f"{one.folder}: {told.sentence}") from error
    if os.environ.get("RANK", "0") == "0":
        print(escape_control_characters(f"{one.folder} is finished"))
