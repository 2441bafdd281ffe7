"""Semi-supervised runs without batch norm in float64, by all processes that torchrun starts; as a script: FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from isda.lab.train import (
    Processes,
    Saving,
    SemiSettings,
    SemiSupervisedClassification,
    join_processes,
    load_data,
    resolve,
    train,
)
from many_processes import plain_network

STEPS = 10
# Without input noise, which every process draws for itself. The parts of 33 and 9 images differ by one.
METHODS = {
    "mean-teacher": "mean-teacher+isda:input_noise=0,memory=30,teacher_decay=0.8",
    "temporal-ensembling": "temporal-ensembling+isda:input_noise=0,bound=tilted",
    "pi-model": "pi-model:input_noise=0,mean_over=batch",
}


def run(folder: Path, processes: Processes) -> None:
    """Ten steps of every method, in two epochs."""
    for name, method in METHODS.items():
        settings = SemiSettings(
            labels=60,
            unlabelled=110,
            batch_size=33,
            labelled_per_batch=9,
            method=method,
            precision="float64",
            epochs=STEPS // 5,
            augment="translate-flip",
        )
        data = load_data(settings)
        saving = Saving(steps=4 if name == "temporal-ensembling" else 5)
        train(
            resolve(settings, data),
            data,
            folder / name,
            task=SemiSupervisedClassification(plain_network()),
            processes=processes,
            saving=saving,
        )


if __name__ == "__main__":
    torch.set_num_threads(1)
    with join_processes("cpu") as started:
        run(Path(sys.argv[1]), started)
