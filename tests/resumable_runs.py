"""Short runs of every task and method with all that has state, for tests that interrupt them in every way.

A new task adds its runs to RUNS; nothing else needs to know. `planned` gives what `engine.train` takes, `outcome`
all that must be the same to the bit whatever happened on the way.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from isda.lab.engine import RunConfig, find_task
from isda.lab.methods.semi import NAMES
from segmentation_runs import draw
from shapes import draw_set

_KILLING = Path(__file__).parent / "engine" / "killed_run.py"

SUPERVISED: dict[str, Any] = {"network": "fast-cnn", "width": 0.1, "labels": 100, "batch_size": 20}
SEMI: dict[str, Any] = {
    "network": "fast-cnn",
    "width": 0.1,
    "labels": 50,
    "unlabelled": 150,
    "batch_size": 40,
    "labelled_per_batch": 12,
}
GENERATION: dict[str, Any] = {"width": 0.1, "labels": 100, "batch_size": 20, "ema": 0.9}
# Dropout, momentum, averaged weights, augmentation: everything that has a state or is drawn.
FULL_STATE: dict[str, Any] = {"network": "resnet-8", "width": 0.25, "dropout": 0.2, "augment": "translate", "ema": 0.9}
# Statistics of both classifiers, momentum, averages, dropout.
SEGMENTATION: dict[str, Any] = {"network": "pspnet-resnet-18", "width": 0.125, "crop": "25x33", "batch_size": 4}
DETECTION: dict[str, Any] = {
    "backbone": "fast-cnn",
    "backbone_options": {"width": "0.25"},
    "min_size": 64,
    "max_size": 64,
    "fpn_channels": 8,
    "head_dim": 16,
    "proposals": 30,
    "box_samples": 16,
    "batch_size": 3,
}

_METHODS = (
    "cross-entropy",
    "isda:lambda_0=2",
    "isda:lambda_0=2,covariance=diagonal,memory=30",
    "isda:lambda_0=2,covariance=low_rank,rank=3",
    "isda:lambda_0=2,covariance=learned",
    "isda-tilted:lambda_0=2,covariance=shared",
    "isda-tilted:lambda_0=2,covariance=low_rank,rank=3,memory=30",
    "center+isda:lambda_0=2",
    "large-margin",
    "distribution-net",
    "disturb-label+isda:lambda_0=2,rate=0.5",
    "explicit:lambda_0=2,samples=2,covariance=learned,rank=3",
    "mixup+isda:lambda_0=2",
)

RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "everything": ("classification", SUPERVISED | FULL_STATE | {"method": "isda-tilted:lambda_0=2,memory=30"}),
    **{method: ("classification", SUPERVISED | {"method": method}) for method in _METHODS},
    **{name: ("semi-supervised", SEMI | {"method": name}) for name in NAMES},
    "segmentation": (
        "segmentation",
        SEGMENTATION | {"ema": 0.9, "method": "isda:covariance=full,memory=30,ohem=true,ohem_kept=900"},
    ),
    "segmentation, tilted": ("segmentation", SEGMENTATION | {"method": "isda-tilted:lambda_0=2"}),
    "mask-rcnn": ("detection", DETECTION | {"network": "mask-rcnn"}),
    "cascade-rcnn": ("detection", DETECTION | {"network": "cascade-rcnn"}),
    # Each trains a judge of its own, too.
    **{
        method: ("generation", GENERATION | {"method": method})
        for method in ("wgan", "wgan:penalty=10", "cgan", "acgan", "infogan")
    },
}
"""What is run, by name: the task and its settings but for the number of epochs."""

DRAWN = {
    "segmentation": lambda folder: draw(folder, {"train": 11, "val": 5}),
    "detection": lambda folder: draw_set(folder, train=7, validation=3, size=64, largest=40),
}
"""Tasks whose images are drawn; the others learn digits."""


@lru_cache(maxsize=2)
def _source(task: str) -> str | None:
    return str(DRAWN[task](Path(tempfile.mkdtemp(prefix="isda-drawn-")) / "images")) if task in DRAWN else None


def planned(name: str, epochs: int) -> tuple[RunConfig, Any]:
    """The configuration and the data of one of RUNS."""
    task_name, settings = RUNS[name]
    task = find_task(task_name)
    asked = task.settings_type(**settings, data=_source(task_name), epochs=epochs)
    data = task.load(asked.data)
    return task.resolve(asked, data), data


def saved(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    """The groups of tensors in the newest checkpoint of a run."""
    return torch.load(sorted(folder.glob("checkpoints/step-*"))[-1], weights_only=True)["tensors"]


def outcome(folder: Path) -> dict[str, object]:
    """Everything a run leaves behind but times: weights, statistics, averages, metrics, pictures."""
    files = [folder / "model.safetensors", *sorted(folder.glob("pictures/*"))]
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    result = json.loads((folder / "result.json").read_text())
    for record in (*metrics, result):
        record.pop("seconds")
    tensors = {
        f"{group}/{name}": t.numpy().tobytes() for group, part in saved(folder).items() for name, t in part.items()
    }
    return (
        {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}
        | tensors
        | {
            "metrics": metrics,
            "result": result,
        }
    )


def check_kills(folder: Path, seed: int, wanted: dict[str, int]) -> None:
    """Runs that are killed so often at random moments end in the bits of those that are not."""
    words = [f"{name}={kills}" for name, kills in wanted.items()]
    killed = subprocess.run([sys.executable, _KILLING, folder, str(seed), *words], capture_output=True, text=True)
    assert killed.returncode == 0, killed.stderr
    assert json.loads(killed.stdout) == wanted
    for number, name in enumerate(wanted):
        whole, broken = outcome(folder / str(number) / "whole"), outcome(folder / str(number) / "killed")
        differing = [part for part in whole if broken.get(part) != whole[part]]
        assert whole.keys() == broken.keys(), name
        assert not differing, f"{name}, killed {wanted[name]} times with seed {seed}, differs in {differing}"
