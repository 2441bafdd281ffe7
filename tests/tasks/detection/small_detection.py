"""A small detection run that the tests share; as a script: FOLDER SET, in however many processes torchrun starts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from isda.lab.engine import Processes, Saving, join_processes, train
from isda.lab.tasks.detection.settings import DetectionSettings
from isda.lab.tasks.detection.task import Detection

SMALL: dict[str, Any] = {
    "network": "mask-rcnn",
    "backbone": "fast-cnn",
    "backbone_options": {"width": "0.25"},
    "min_size": 64,
    "max_size": 64,
    "fpn_channels": 8,
    "head_dim": 16,
    "proposals": 30,
    "box_samples": 16,
    "batch_size": 3,
    "epochs": 2,
}
SMALL_WORDS = [
    *("--network", "mask-rcnn", "--backbone", "fast-cnn", "--backbone-options", "width", "0.25", "--min-size", "64"),
    *("--max-size", "64", "--fpn-channels", "8", "--head-dim", "16", "--proposals", "30", "--box-samples", "16"),
    *("--batch-size", "3", "--epochs", "2"),
]


def small_run(folder: Path, data: Path, processes: Processes | None = None, **changes: Any) -> dict[str, Any]:
    """Two epochs; returns the result."""
    task = Detection()
    hooks = changes.pop("hooks", ())
    loaded = task.load(str(data))
    config = task.resolve(DetectionSettings(**(SMALL | changes)), loaded)
    return train(config, loaded, folder, task=task, processes=processes, saving=Saving(steps=1, keep=9), hooks=hooks)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with join_processes("cpu") as started:
        small_run(Path(sys.argv[1]), Path(sys.argv[2]), started, batch_norm="frozen", precision="float64")
