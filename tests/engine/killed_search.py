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


def main(folder: Path, kills: int, chance: random.Random) -> None:
    """Kill, start again, and in the end let it finish."""
    killed = 0
    while True:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                search(folder)
                status = 0
            finally:
                os._exit(status)
        if killed < kills:
            runs = len(begun(folder))
            while len(begun(folder)) < runs + 1 and os.waitpid(child, os.WNOHANG) == (0, 0):
                time.sleep(0.001)
            time.sleep(chance.uniform(0, 0.2))
            os.kill(child, signal.SIGKILL)
            killed += 1
        _, status = os.waitpid(child, 0)
        if status == 0:
            break
        if os.WIFEXITED(status):
            sys.exit(f"the search failed by itself with status {status}")
    print(killed)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), random.Random(int(sys.argv[3])))
