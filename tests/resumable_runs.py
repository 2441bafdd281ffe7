"""Short runs of every task and method with all that has state, for tests that interrupt them in every way.

A new task adds its runs to RUNS; nothing else needs to know. `planned` gives what `isda.engine.train` takes, `outcome`
all that must be the same to the bit whatever happened on the way.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from isda.engine import RunConfig, find_task
from isda.semi import NAMES

SUPERVISED: dict[str, Any] = {"network": "fast-cnn", "width": 0.1, "labels": 100, "batch_size": 20}
SEMI: dict[str, Any] = {
    "network": "fast-cnn",
    "width": 0.1,
    "labels": 50,
    "unlabelled": 150,
    "batch_size": 40,
    "labelled_per_batch": 12,
}
# Dropout, momentum, averaged weights, augmentation: everything that has a state or is drawn.
GENERATION: dict[str, Any] = {"width": 0.1, "labels": 100, "batch_size": 20, "ema": 0.9}
FULL_STATE: dict[str, Any] = {"network": "resnet-8", "width": 0.25, "dropout": 0.2, "augment": "translate", "ema": 0.9}

_METHODS = (
    "cross-entropy",
    "isda:lambda_0=2",
    "isda:lambda_0=2,covariance=diagonal,decay=0.9",
    "isda:lambda_0=2,covariance=low_rank,rank=3",
    "isda:lambda_0=2,covariance=learned",
    "isda-tilted:lambda_0=2,covariance=shared",
    "isda-tilted:lambda_0=2,covariance=low_rank,rank=3,decay=0.9",
)

RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "everything": ("classification", SUPERVISED | FULL_STATE | {"method": "isda-tilted:lambda_0=2,decay=0.9"}),
    **{method: ("classification", SUPERVISED | {"method": method}) for method in _METHODS},
    # Pseudo labels of networks that have hardly begun to learn do not reach FixMatch's threshold.
    **{
        name: ("semi-supervised", SEMI | {"method": f"{name}:threshold=0.15" if "fixmatch" in name else name})
        for name in NAMES
    },
    # Each trains a judge of its own, too.
    **{
        method: ("isda.generative.task:Generation", GENERATION | {"method": method})
        for method in ("wgan", "wgan:penalty=10", "cgan", "acgan", "infogan")
    },
}
"""What is run, by name: the task and its settings but for the number of epochs."""


def planned(name: str, epochs: int) -> tuple[RunConfig, Any]:
    """The configuration and the data of one of RUNS."""
    task_name, settings = RUNS[name]
    task = find_task(task_name)
    asked = task.settings_type(**settings, epochs=epochs)
    data = task.load(asked.data)
    return task.resolve(asked, data), data


def outcome(folder: Path) -> dict[str, object]:
    """Everything a run leaves behind but times: weights, statistics, averages, metrics."""
    newest = sorted(folder.glob("checkpoints/step-*"))[-1]
    files = [folder / "model.safetensors", *sorted(newest.glob("*.safetensors"))]
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    result = json.loads((folder / "result.json").read_text())
    for record in (*metrics, result):
        record.pop("seconds")
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files} | {
        "metrics": metrics,
        "result": result,
    }
