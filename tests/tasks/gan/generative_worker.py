"""A run in float64 by however many processes torchrun starts; as a script: JUDGE FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from generative_runs import small_config
from isda.lab.engine import Processes, Saving, join_processes, train
from isda.lab.tasks.gan.task import Generation
from small_runs import digits

STEPS = 10
WRITTEN = {"wgan": "wgan:penalty=10,n_critic=2", "infogan": "infogan"}
"""What is run, each in a folder of its own."""


def run(method: str, judge: Path, folder: Path, processes: Processes) -> Any:
    """Two epochs of five steps; a batch of 20 leaves 10 to each of two processes, one of 21 leaves 11 and 10."""
    size, labels = (20, 100) if method.startswith("wgan") else (21, 110)
    config = small_config(judge, method=method, precision="float64", batch_size=size, labels=labels, ema=0.9)
    return train(config, digits(), folder, task=Generation(), processes=processes, saving=Saving(steps=5))


if __name__ == "__main__":
    torch.set_num_threads(1)
    with join_processes("cpu") as started:
        for name, written in WRITTEN.items():
            run(written, Path(sys.argv[1]), Path(sys.argv[2]) / name, started)
