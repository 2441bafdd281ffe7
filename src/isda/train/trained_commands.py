"""The commands ``isda evaluate`` and ``isda predict``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

__all__ = ["evaluate", "predict"]

JsonFile = Annotated[str | None, tyro.conf.arg(metavar="FILE")]


def evaluate(
    run: tyro.conf.Positional[Path],
    *,
    data: str | None = None,
    data_root: Path | None = None,
    device: str = "auto",
    json: JsonFile = None,
) -> None:
    """Measure a trained network: error, negative log-likelihood and calibration.

    Args:
        run: a run folder.
        data: another data set with the same classes, instead of the one the run was trained on.
        data_root: the folder of data sets; by default the environment's ISDA_DATA, else ./data.
        device: auto, cpu, cuda or cuda:1.
        json: also write the figures to this file as JSON; "-" writes JSON to the standard output and nothing else.
    """
    from dataclasses import replace

    from isda.data import load
    from isda.train.processes import join_processes
    from isda.train.trained import load_trained

    trained = load_trained(run)
    if data is not None:
        # Another data set is judged by its own test images.
        config = replace(trained.config, data=data, held_out=0, labels=None, evaluated_on="test")
        trained = replace(trained, config=config)
    with join_processes(device) as processes:
        measures = trained.measure(load(trained.config.data, data_root), processes.device)
    config = trained.config
    lines = [
        f"{config.network}, {config.method}, {config.scale} scale, seed {config.seed}, "
        f"on the {config.evaluated_on} images of {config.data}"
    ]
    units = {"error": "top-1 error %", "error_top5": "top-5 error %", "nll": "negative log-likelihood"}
    units["calibration"] = "calibration error %"
    lines += [f"{units[name]:>24} {value:8.3f}" for name, value in measures.items()]
    _tell(
        lines,
        {"run": str(run), "data": config.data, "evaluated_on": config.evaluated_on, "scale": config.scale} | measures,
        json,
    )


def predict(
    run: tyro.conf.Positional[Path],
    images: tyro.conf.Positional[tuple[Path, ...]],
    *,
    top: int = 3,
    json: JsonFile = None,
) -> None:
    """Say what a trained network sees in image files.

    Args:
        run: a run folder.
        images: image files; each is resized to the size that the network was trained on.
        top: how many classes to name for each image.
        json: also write the predictions to this file as JSON; "-" writes JSON to the standard output and nothing else.
    """
    from isda.train.trained import load_trained

    if not images:
        raise ValueError("images must name at least one image file, got none")
    if top < 1:
        raise ValueError(f"top must be at least 1, got {top}")
    trained = load_trained(run)
    best = trained.probabilities(images).topk(min(top, len(trained.config.classes)))
    lines, records = [], []
    for image, values, indices in zip(images, best.values.tolist(), best.indices.tolist(), strict=True):
        named = [(trained.config.classes[index], value) for index, value in zip(indices, values, strict=True)]
        lines.append(f"{image}: " + ", ".join(f"{name} {100 * value:.1f}%" for name, value in named))
        records.append({"image": str(image), "classes": [{"name": name, "probability": p} for name, p in named]})
    _tell(lines, records, json)


def _tell(lines: list[str], record: object, json: str | None) -> None:
    """Print the lines, or the record as JSON where it is asked for."""
    from json import dumps

    text = dumps(record, indent=2)
    print(text if json == "-" else "\n".join(lines))
    if json not in (None, "-"):
        path = Path(str(json))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
