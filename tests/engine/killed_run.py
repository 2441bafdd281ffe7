"""As a script: FOLDER KILLS SEED. Trains one run in child processes that are killed with SIGKILL again and again.

The parent imports everything once and forks, so that starting anew costs milliseconds, not seconds. It prints how many
times it killed. As a module: the run that is killed.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

from isda.classification.config import Config
from isda.data import DataSet
from isda.train import Saving, Settings, load_data, resolve, train

STEPS_PER_KILL = 3


def killed_run(kills: int) -> tuple[Config, DataSet]:
    """A short run with everything that has state: statistics, momentum, averaged weights, dropout, augmentation."""
    settings = Settings(
        method="isda-tilted:lambda_0=2,decay=0.9",
        network="resnet-8",
        width=0.25,
        dropout=0.2,
        labels=100,
        batch_size=20,
        augment="translate",
        ema=0.9,
        epochs=max(4, -(-kills * (STEPS_PER_KILL + 4) // 5)),
    )
    data = load_data(settings)
    return resolve(settings, data), data


def start(run: tuple[Config, DataSet], folder: Path) -> int:
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


def newest_step(folder: Path) -> int:
    """The step of the newest checkpoint."""
    return max((int(path.name[5:]) for path in folder.glob("checkpoints/step-*")), default=0)


def ended(child: int) -> bool:
    """Whether the child has ended by itself; a failure ends the script."""
    finished, status = os.waitpid(child, os.WNOHANG)
    if finished and status != 0:
        sys.exit(f"the run failed by itself with status {status}")
    return bool(finished)


def kill_after(child: int, folder: Path, steps: int, seconds: float) -> bool:
    """Kill the child some time after it has made some steps; whether that came before its end."""
    target = newest_step(folder) + steps
    while newest_step(folder) < target:
        if ended(child):
            return False
        time.sleep(0.001)
    time.sleep(seconds)
    if ended(child):
        return False
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def main(folder: Path, kills: int, seed: int) -> None:
    """Kill, start again, and in the end let it finish."""
    torch.set_num_threads(1)
    chance: Any = random.Random(seed)
    run, killed = killed_run(kills), 0
    while killed < kills:
        child = start(run, folder)
        # A fifth of the kills comes while the run starts or is restored, the others anywhere in a step or a checkpoint.
        steps = chance.choice([0, 1, 2, 3, STEPS_PER_KILL])
        if not kill_after(child, folder, steps, chance.uniform(0, 0.06)):
            sys.exit(f"the run came to its end after {killed} kills; it must be longer")
        killed += 1
    child = start(run, folder)
    _, status = os.waitpid(child, 0)
    if status:
        sys.exit(f"the run failed at the end with status {status}")
    print(killed)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
