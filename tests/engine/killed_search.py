"""As a script: FOLDER KILLS SEED. A search is killed with SIGKILL again and again at random moments, then finished.

The parent imports everything once and forks, as tests/engine/killed_run.py does. It prints how often it was killed.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch.utils.tensorboard  # noqa: F401, imports that take longer than a search

from parabola import ParabolaSettings, begun, tuned


def search(folder: Path) -> None:
    """Two methods, a grid that widens, and what is left of the budget between its values."""
    tuned(folder, ("parabola", "worse"), ["x=0.5,1"], ParabolaSettings(steps=20), trials=6, seeds=(100, 101))


def start(folder: Path) -> int:
    """A child process that searches, or goes on with the search; returns its process id."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            search(folder)
            status = 0
        finally:
            os._exit(status)
    return child


def ended(child: int, wait: bool = False) -> bool:
    """Whether the child has come to its end; a failure ends the script."""
    finished, status = os.waitpid(child, 0 if wait else os.WNOHANG)
    if finished and status:
        sys.exit(f"the search failed by itself with status {status}")
    return bool(finished)


def killed(child: int, folder: Path, seconds: float) -> bool:
    """Kill the child some time after it has begun a run; whether that came before its end."""
    runs = len(begun(folder))
    while len(begun(folder)) == runs:
        if ended(child):
            return False
        time.sleep(0.001)
    time.sleep(seconds)
    if ended(child):
        return False
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def main(folder: Path, kills: int, chance: random.Random) -> None:
    """Kill, start again, and in the end let it finish."""
    for number in range(kills):
        if not killed(start(folder), folder, chance.uniform(0, 0.1)):
            print(number)
            return
    ended(start(folder), wait=True)
    print(kills)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), random.Random(int(sys.argv[3])))
