"""Files as the installed version of isda writes them, for the tests of the version after it.

``python tests/versions/make.py`` writes tests/versions/VERSION: one criterion of every covariance model after some
batches, with the loss that it then has, and a finished run. It is run once, before a version is released;
the next version's tests read what it wrote.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import isda

CLASSES, FEATURES = 3, 4
CRITERIA = {
    "full": {},
    "full-decay": {"covariance": "full", "decay": 0.9},
    "diagonal": {},
    "low_rank": {"rank": 2},
    "shared": {},
    "identity": {},
    "learned": {},
}


def criterion(name: str) -> isda.ISDALoss:
    """A criterion that has seen nothing."""
    options = {"covariance": name, **CRITERIA[name]}
    torch.manual_seed(0)
    return isda.ISDALoss(CLASSES, FEATURES, lambda_0=0.5, total_steps=10, **options)


def batch(index: int) -> tuple[Tensor, Tensor, nn.Linear]:
    """Features, labels and a classifier that follow from the index alone, whatever draws torch makes."""
    grid = torch.arange(12 * FEATURES, dtype=torch.float32).reshape(12, FEATURES)
    head = nn.Linear(FEATURES, CLASSES)
    with torch.no_grad():
        head.weight.copy_(torch.sin(torch.arange(CLASSES * FEATURES).reshape(CLASSES, FEATURES) * 1.7))
        head.bias.copy_(torch.cos(torch.arange(CLASSES) * 2.3))
    return torch.sin(grid * (index + 1) * 0.37) + 0.1 * index, torch.arange(12) % CLASSES, head


def loss(made: isda.ISDALoss, index: int) -> Tensor:
    """The loss of one training batch; the statistics see it."""
    features, labels, head = batch(index)
    value: Tensor = made(head(features), labels, features=features, weight=head.weight)
    return value


def main() -> None:
    """Write everything."""
    top = Path(__file__).parent / isda.__version__
    shutil.rmtree(top, ignore_errors=True)
    top.mkdir()
    losses = {}
    for name in CRITERIA:
        made = criterion(name)
        for index in range(5):
            loss(made, index)
        save_file(made.state_dict(), top / f"{name}.safetensors")
        losses[name] = float(loss(made, 5))
    (top / "losses.json").write_text(json.dumps(losses, indent=1) + "\n")
    small = ("--data", "digits", "--labels", "100", "--epochs", "2", "--batch-size", "50", "--width", "0.125")
    subprocess.run([sys.executable, "-m", "isda", "train", *small, "--out", str(top / "run")], check=True)
    shutil.rmtree(top / "run" / "tensorboard")


if __name__ == "__main__":
    main()
