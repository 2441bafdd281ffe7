"""Configurations of earlier formats, read as the present one.

A version reads the run folders of its own format and of the one before: reports, evaluation and prediction work, and
the run can be used. It goes on with runs of its own format only, because draws and checkpoints may have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from isda.engine.folder.seal import read_sealed

__all__ = ["FORMAT", "read_config"]

FORMAT = 2
"""2, since 0.2.0: a configuration names its task and says what its figures are."""


def read_config(path: Path) -> dict[str, Any]:
    """The content of config.json in the terms of the present format; "format" keeps the one it was written in.

    Raises:
        ValueError: it is no configuration, or one of a format that this version does not know.
    """
    stored = read_sealed(path)
    written = stored.get("format")
    if written == FORMAT and type(written) is int:
        return stored
    upgrade = _UPGRADES.get(written) if type(written) is int else None
    if upgrade is None:
        newer = type(written) is int and written > FORMAT
        remedy = "; a newer version of isda wrote it" if newer else ""
        raise ValueError(f"{path} must be a run's configuration of format {FORMAT}, got {written!r}{remedy}")
    try:
        return stored | upgrade(stored)
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is not the configuration of format {written} that it says it is: {error!r}"
        ) from error


def _from_1(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Format 1 knew classifiers alone, and what tables show of a run stood in the code."""
    semi = stored["labelled_per_batch"] is not None
    on = stored["evaluated_on"]
    top = [_figure("error_top5", on, "top-5 error", unit="%")] if len(stored["classes"]) > 5 else []
    figures = [
        _figure("error", on, "error", unit="%"),
        *top,
        _figure("nll", on, "negative log-likelihood", digits=3),
        _figure("calibration", on, "calibration error", unit="%"),
        {"name": "train_loss", "metric": "train/loss", "title": "training loss", "digits": 4, "averaged": False},
    ]
    held_out = stored["held_out"]
    return {
        "task": "semi-supervised" if semi else "classification",
        "figures": figures,
        "curves": [
            {"metric": "train/loss", "title": "Training loss", "unit": "loss", "logarithmic": True},
            {"metric": "strength", "title": "Strength λ of ISDA", "unit": "λ"},
        ],
        "baselines": ["cross-entropy", "supervised"],
        "of_method": ["labelled_per_batch"] if semi else [],
        "held_out_labels": held_out / stored["labels"] if semi else 0.0,
    }


def _figure(name: str, on: str, title: str, **further: Any) -> dict[str, Any]:
    # Whatever was measured on, the lines of metrics.jsonl called it test.
    return {"name": name, "metric": f"test/{name}", "title": f"{on} {title}"} | further


_UPGRADES: dict[int, Callable[[Mapping[str, Any]], dict[str, Any]]] = {1: _from_1}
"""What each earlier format lacks."""
