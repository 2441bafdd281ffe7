"""A run in float64 by however many processes torchrun starts; as a script: DATA FOLDER frozen or synchronised."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from isda.lab.engine import Processes, Saving, join_processes, train
from isda.lab.tasks.segmentation.settings import SegmentationSettings
from isda.lab.tasks.segmentation.task import Segmentation

STEPS = 6


def run(data: Path, folder: Path, processes: Processes, batch_norm: str) -> Any:
    """Three epochs of two steps, with frozen or synchronised batch norm."""
    task = Segmentation()
    images = task.load(str(data))
    settings = SegmentationSettings(
        network="pspnet-resnet-18",
        width=0.125,
        crop="25x33",
        batch_size=5,
        epochs=3,
        lr=0.02,
        dropout=0.0,
        precision="float64",
        smallest_scale=0.5,  # far from divergence, where rounding would grow
        largest_scale=2.0,
        freeze_batch_norm=batch_norm == "frozen",
        sync_batch_norm=batch_norm == "synchronised",
        method="isda:lambda_0=1,covariance=full",
    )
    return train(task.resolve(settings, images), images, folder, task=task, processes=processes, saving=Saving(steps=2))


if __name__ == "__main__":
    torch.set_num_threads(1)
    with join_processes("cpu") as started:
        run(Path(sys.argv[1]), Path(sys.argv[2]), started, sys.argv[3])
