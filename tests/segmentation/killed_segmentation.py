"""As a script: DATA FOLDER. Trains one run in child processes that are killed with SIGKILL, then lets it finish.

The parent imports everything once and forks, as tests/engine/killed_run.py does. As a module: the run that is killed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))

from killed_run import kill_after, start

from isda.data.segmentation import SegmentationData, load
from isda.segmentation.config import Config
from isda.segmentation.settings import Settings
from isda.segmentation.task import Segmentation

KILLS = ((2, 0.0), (1, 0.05), (3, 0.02))
"""Steps, and seconds, until each kill."""


def killed_run(data: Path) -> tuple[Config, SegmentationData]:
    """A short run with everything that has state: statistics of both classifiers, momentum, averages, dropout."""
    images = load(data)
    settings = Settings(
        network="pspnet-resnet-18",
        width=0.125,
        crop="25x33",
        batch_size=4,
        epochs=6,
        ema=0.9,
        method="isda:covariance=full,decay=0.99,ohem=true,ohem_kept=900",
    )
    return Segmentation().resolve(settings, images), images


def main(data: Path, folder: Path) -> None:
    """Kill, start again, and in the end let it finish."""
    torch.set_num_threads(1)
    run = killed_run(data)
    for steps, seconds in KILLS:
        if not kill_after(start(run, folder), folder, steps, seconds):  # type: ignore[arg-type]
            sys.exit("the run came to its end before it was killed; it must be longer")
    _, status = os.waitpid(start(run, folder), 0)  # type: ignore[arg-type]
    sys.exit(status and "the run failed at the end")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
