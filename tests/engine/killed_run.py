"""As a script: FOLDER SEED NAME=KILLS... Trains runs in child processes that are killed with SIGKILL again and again.

The parent imports everything once and forks, so that starting anew costs milliseconds, not seconds. Each run of
tests/resumable_runs.py is also made without interruption, beside it: NAME/whole and NAME/killed, where NAME is its
number among the arguments. It prints how often each was killed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from isda.lab.train import Saving, train
from resumable_runs import planned

STEPS_PER_KILL = 3


def start(run: tuple[Any, Any], folder: Path) -> int:
    """A child process that trains, or goes on with, the run in the folder; returns its process id."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            train(*run, folder, saving=Saving(steps=1))
            status = 0
        finally:
            os._exit(status)
    return child


def finish(run: tuple[Any, Any], folder: Path) -> None:
    """Train to the end in a child process."""
    _, status = os.waitpid(start(run, folder), 0)
    if status:
        sys.exit(f"the run in {folder} failed with status {status}")


def newest_step(folder: Path) -> int:
    """The step of the newest checkpoint."""
    return max((int(path.stem[5:]) for path in folder.glob("checkpoints/step-*")), default=0)


def ended(child: int) -> bool:
    """Whether the child has ended by itself; a failure ends the script."""
    finished, status = os.waitpid(child, os.WNOHANG)
    if finished and status != 0:
        sys.exit(f"the run failed by itself with status {status}")
    return bool(finished)


def kill_after(child: int, folder: Path, steps: int, seconds: float) -> bool:
    """Kill the child some time after it has made some steps, but before many more; whether that came before its end."""
    target = newest_step(folder) + steps
    while newest_step(folder) < target:
        if ended(child):
            return False
        time.sleep(0.001)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and newest_step(folder) < target + STEPS_PER_KILL:
        time.sleep(0.001)
    if ended(child):
        return False
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def kill_again_and_again(name: str, kills: int, chance: random.Random, folder: Path) -> None:
    """Kill, start again, and in the end let it finish."""
    steps_per_epoch = planned(name, 4)[0].steps_per_epoch
    run = planned(name, max(4, -(-kills * (2 * STEPS_PER_KILL + 4) // steps_per_epoch)))
    finish(run, folder / "whole")
    for killed in range(kills):
        child = start(run, folder / "killed")
        # A fifth of the kills comes while the run starts or is restored, the others anywhere in a step or a checkpoint.
        steps = chance.choice([0, 1, 2, 3, STEPS_PER_KILL])
        if not kill_after(child, folder / "killed", steps, chance.uniform(0, 0.06)):
            sys.exit(f"{name} came to its end after {killed} kills; it must be longer")
    finish(run, folder / "killed")


def main(folder: Path, seed: int, wanted: dict[str, int]) -> None:
    """All runs, one after the other."""
    torch.set_num_threads(1)
    for number, (name, kills) in enumerate(wanted.items()):
        kill_again_and_again(name, kills, random.Random(f"{seed} {name}"), folder / str(number))
    print(json.dumps(wanted))


if __name__ == "__main__":
    pairs = (word.rpartition("=") for word in sys.argv[3:])
    main(Path(sys.argv[1]), int(sys.argv[2]), {name: int(kills) for name, _, kills in pairs})
