"""Rival methods in float64, without batch norm, trained by however many processes there are; as a script: FOLDER."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import torch

from isda.lab.train import Classification, Processes, Saving, Settings, join_processes, load_data, resolve, train
from many_processes import plain_network

METHODS = {
    "center": "center:weight=0.1",
    "auto": "isda:lambda_0=auto",
    "center-isda": "center+isda:weight=0.1,lambda_0=2",
    "large-margin": "large-margin:margin=3",
    # The features that are drawn depend on the process; the rest does not.
    "distribution-net": "distribution-net:sample_weight=0,uncertainty_weight=0.5,deviation=0.8",
    "ldam-isda": "ldam+isda:lambda_0=2,drw=true,drw_start=0.5",
    "risda": "risda:lambda_0=2,drw_start=0.5",
    "metasaug": "metasaug:lambda_0=2,drw_start=0.5",
}
LONG_TAILS = {"ldam-isda": 10.0, "risda": 10.0, "metasaug": 10.0}
"""Methods whose images are drawn with an imbalance."""


def run(folder: Path, processes: Processes) -> None:
    """Six steps each; a batch of 33 leaves 17 and 16 to two processes, and no process sees every class."""
    for name, method in METHODS.items():
        settings = Settings(
            labels=99,
            imbalance=LONG_TAILS.get(name),
            batch_size=33,
            method=method,
            precision="float64",
            epochs=2,
            augment="none",
        )
        data = load_data(settings)
        config = replace(resolve(settings, data), average_last=1)
        task = Classification(plain_network())
        train(config, data, folder / name, processes=processes, saving=Saving(steps=3), task=task)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with join_processes("cpu") as started:
        run(Path(sys.argv[1]), started)
