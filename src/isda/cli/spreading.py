"""Where the runs of a command are made, and what becomes of the command if they are stopped or left to others."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from isda.cli.machine import Machine
from isda.cli.surroundings import SAID
from isda.engine.interruptions import Stopped
from isda.engine.places.pool import HandedOver, Pool
from isda.engine.places.spread import Request, Spread, open_pool

__all__ = ["opened", "without_place"]

_OF_PLACE = ("--on", "--sbatch", "--cpus-per-run", "--gpus-per-run")


@contextmanager
def opened(
    spread: Spread, machine: Machine, folder: Path, most: int | None = None, rounds: bool = False
) -> Iterator[Pool]:
    """The pool that the options ask for; the command ends if its runs were stopped, or left to others.

    Args:
        spread: where, and how many at a time.
        machine: its threads are those of each run on a cluster.
        folder: of all runs.
        most: how many runs there will be, where that is known.
        rounds: whether later runs follow from earlier ones.
    """
    request = Request(
        spread=spread, folder=folder, command=("isda", *without_place(SAID.get())), threads=machine.threads, most=most
    )
    try:
        with open_pool(request) as pool:
            if rounds:
                pool.check_rounds()
            yield pool
    except Stopped as stopped:
        print(f"isda: {stopped}; the same command goes on", file=sys.stderr)
        sys.exit(stopped.status)
    except HandedOver as told:
        print(told)
        sys.exit(0)


def without_place(words: Sequence[str]) -> list[str]:
    """The words of a command without those that say where its runs are made: the command that makes the table.

    Example:
        >>> without_place(["compare", "--on", "slurm", "--sbatch", "partition=gpu", "time=1:00:00", "--seeds", "5"])
        ['compare', '--seeds', '5']
    """
    kept: list[str] = []
    dropping = False
    for word in words:
        if word.startswith("--"):
            dropping = word.partition("=")[0].replace("_", "-") in _OF_PLACE
        if not dropping:
            kept.append(word)
    return kept
