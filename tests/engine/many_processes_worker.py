"""A run without batch norm in float64, trained by however many processes torchrun starts; as a script: FOLDER."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from isda.lab.networks import Network
from isda.lab.train import Classification, Processes, Saving, Settings, join_processes, load_data, resolve, train

STEPS = 20


def plain_network() -> Network:
    """Convolutions without batch norm, whose statistics would depend on how a batch is shared out."""
    torch.manual_seed(3)
    body = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2), nn.Conv2d(8, 12, 3), nn.Tanh(), nn.Flatten()
    )
    return Network(body, nn.Linear(48, 10))


def run(folder: Path, processes: Processes, method: str = "isda-tilted:lambda_0=2", batch_size: int = 33) -> Any:
    """Twenty steps; a batch of 33 leaves 17 and 16 to two processes, and no process sees every class."""
    settings = Settings(
        labels=5 * batch_size,
        batch_size=batch_size,
        method=method,
        precision="float64",
        epochs=STEPS // 5,
        augment="crop",
    )
    data = load_data(settings)
    config = replace(resolve(settings, data), average_last=1)
    return train(
        config, data, folder, processes=processes, saving=Saving(steps=5), task=Classification(plain_network())
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    with join_processes("cpu") as started:
        result = run(Path(sys.argv[1]), started)
        Path(f"{sys.argv[1]}-rank-{started.rank}.json").write_text(json.dumps(result))
