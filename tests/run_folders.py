"""Run folders without any training, for tests of what reads them; config.json and result.json as runs write them.

As a module: a classification or semi-supervised run, a run of a task that is nowhere installed, and a comparison.
"""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from isda.lab.engine import Curve, Figure, RunConfig
from isda.lab.engine.config import result_figures
from isda.lab.engine.run_folder import RunFolder
from isda.lab.tasks.classification.settings import ClassificationConfig
from isda.lab.tasks.common.evaluation import BASELINES, CURVES, figures_for
from isda.lab.tasks.common.predictions import PREDICTIONS_FILE, Predictions
from isda.lab.tasks.semi_supervised.settings import SemiConfig

METHODS: dict[str, dict[str, Any]] = {
    "cross-entropy": {},
    "isda": {"lambda_0": 0.5, "bound": "jensen", "covariance": "full"},
    "isda-tilted": {"lambda_0": 0.5, "bound": "tilted", "covariance": "full"},
}
GAIN = {"cross-entropy": 0.0, "isda": 0.9, "isda-tilted": 0.35}
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SETTINGS: dict[str, Any] = {
    "task": "classification",
    "version": "0.1.0",
    "data": "cifar10",
    "network": "resnet-20",
    "network_options": {"width": 0.5},
    "scale": "small",
    "epochs": 20,
    "steps_per_epoch": 39,
    "average_last": 2,
    "evaluated_on": "test",
    "curves": CURVES,
    "baselines": BASELINES,
    "batch_size": 128,
    "lr": 0.1,
    "schedule": "steps",
    "milestones": (10, 15),
    "lr_factor": 0.1,
    "momentum": 0.9,
    "weight_decay": 1e-4,
    "augment": "crop-flip",
    "labels": 5000,
    "held_out": 0,
    "classes": CLASSES,
    "mean": (0.5, 0.5, 0.5),
    "std": (0.25, 0.25, 0.25),
    "channels": 3,
    "image_size": (32, 32),
    "train_images": 5000,
    "test_images": 10000,
}
SEMI: dict[str, Any] = {
    "task": "semi-supervised",
    "unlabelled": 45000,
    "labelled_per_batch": 32,
    "held_out_labels": 0.0,
    "normalisation": "zca",
}


@dataclass(frozen=True, kw_only=True)
class StrangersConfig(RunConfig):
    """Of a task that nobody here knows: its figure is a bare number, and higher is better."""

    crop: int = 512


STRANGERS: dict[str, Any] = {
    "task": "strangers-segmentation",
    "data": "cityscapes",
    "network": "deeplab",
    "scale": "custom",
    "epochs": 20,
    "steps_per_epoch": 10,
    "average_last": 2,
    "evaluated_on": "validation",
    "figures": (
        Figure(name="miou", metric="validation/miou", title="mean IoU", digits=4, lower_is_better=False),
        Figure(name="latency", metric="latency", title="latency", unit="ms", digits=1, averaged=False),
    ),
    "curves": (Curve(metric="validation/boundary", title="Boundary F1"),),
    "baselines": ("pixel-cross-entropy",),
}


def write_run(folder: Path, method: str = "isda", seed: int = 0, stop: int | None = None, **changes: Any) -> Path:
    """A classification run whose error falls like a real one's, or a semi-supervised one where `unlabelled` is given.

    Args:
        folder: of the run.
        method: its name.
        seed: of the run.
        stop: it was killed after that epoch.
        **changes: `error` is what result.json has; others are settings, also such as no version of isda has.
    """
    error = changes.pop("error", None)
    semi = SEMI if "unlabelled" in changes else {}
    named = {"method": method, "seed": seed, "method_options": METHODS.get(method, {})}
    settings = SETTINGS | semi | named | {"settings": {"method": method, "seed": seed}} | changes
    settings.setdefault("figures", figures_for(settings["evaluated_on"], len(settings["classes"])))
    metrics = _errors(method, seed, settings["epochs"], settings["milestones"], settings["evaluated_on"])
    config = _config(SemiConfig if semi else ClassificationConfig, settings)
    return _write(folder, config, settings, metrics, stop, {} if error is None else {"error": error})


def write_strangers_run(folder: Path, method: str, seed: int, miou: float, **changes: Any) -> Path:
    """A finished run of the stranger's task, with the mean IoU that it ends with."""
    settings = STRANGERS | {"method": method, "seed": seed} | changes
    metrics = [
        {
            "epoch": epoch,
            "step": settings["steps_per_epoch"] * epoch,
            "validation/miou": miou * (1 - math.exp(-epoch)),
            "validation/boundary": 0.5 * miou,
            "latency": 12.5,
            "seconds": 10.5,
        }
        for epoch in range(1, settings["epochs"] + 1)
    ]
    return _write(folder, _config(StrangersConfig, settings), settings, metrics, None, {"miou": miou})


def write_comparison(top: Path) -> Path:
    """Three methods, four seeds and twenty epochs; one run was killed after epoch 12."""
    for method in METHODS:
        for seed in range(4):
            stop = 12 if (method, seed) == ("isda-tilted", 3) else None
            write_run(top / method / f"seed-{seed}", method, seed, stop)
    return top


def drawn_predictions(seed: int, classes: int = 10, wrong: float = 0.3, count: int = 400) -> Predictions:
    """Predictions on one test set, with pictures of the mistakes; each seed is another network."""
    labels = torch.randint(classes, (count,), generator=torch.Generator().manual_seed(99))
    generator = torch.Generator().manual_seed(seed)
    misses = torch.rand(count, generator=generator) < wrong
    step = torch.randint(1, 4, (count,), generator=generator)
    predicted = torch.where(misses, (labels + step) % classes, labels)
    confidence = 0.2 + 0.79 * torch.rand(count, generator=generator)
    images = torch.randint(256, (count, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(5))
    return Predictions(torch.arange(count), labels, predicted, confidence).with_pictures(images)


def leave_predictions(folder: Path, seed: int, **changes: Any) -> Path:
    """Put drawn predictions into the folder of a finished run, as a run does."""
    drawn_predictions(seed, **changes).save(folder / PREDICTIONS_FILE)
    return folder


def _config(kind: type[RunConfig], settings: dict[str, Any]) -> RunConfig:
    known = {field.name for field in fields(kind)}
    return kind(**{name: value for name, value in settings.items() if name in known})


def _write(
    folder: Path,
    config: RunConfig,
    settings: dict[str, Any],
    metrics: list[dict[str, Any]],
    stop: int | None,
    result: dict[str, float],
) -> Path:
    """The files of a run; settings that its configuration does not have stand in config.json all the same."""
    run = RunFolder(folder)
    folder.mkdir(parents=True)
    stored = json.loads(config.as_json())
    further = {name: value for name, value in settings.items() if name not in stored}
    run.config_file.write_text(json.dumps(stored | further))
    environment = {"python": "3.11.7", "torch": "2.15.0", "device": "cpu", "threads": 1}
    started = {"started": f"2026-01-0{config.seed + 1}"}
    run.environment_file.write_text(json.dumps(environment | started))
    run.metrics_file.write_text("".join(json.dumps(record) + "\n" for record in metrics[:stop]))
    if stop is None:
        figures = (
            result_figures(config.figures, metrics, config.average_last) | {"seconds": 210.0 + config.seed} | result
        )
        run.result_file.write_text(json.dumps(figures))
    return folder


def _errors(method: str, seed: int, epochs: int, milestones: tuple[int, ...], on: str) -> list[dict[str, Any]]:
    draw, of_seed = random.Random(f"{method} {seed}"), random.Random(seed).gauss(0, 0.5)
    records = []
    for epoch in range(1, epochs + 1):
        drops = sum(epoch > milestone for milestone in milestones)
        noise = draw.gauss(0, 1.5 if drops == 0 else 0.25)
        error = 30 + 50 * math.exp(-epoch / 3) - 5 * drops - GAIN.get(method, 0.0) + of_seed + noise
        record = {
            "epoch": epoch,
            "step": 39 * epoch,
            "learning_rate": 0.1 * 0.1**drops,
            "train/loss": 2.2 * math.exp(-epoch / 5) * 0.5**drops + 0.01 * draw.random() + 0.02,
            f"{on}/error": error,
            f"{on}/error_top5": error / 10,
            f"{on}/nll": error / 25,
            f"{on}/calibration": 3 + draw.random(),
            "seconds": 10.5,
        }
        if method.startswith("isda"):
            record["strength"] = 0.5 * epoch / epochs
            record["margin_variance"] = 4.0 + 0.2 * epoch + 0.1 * seed
        records.append(record)
    return records
