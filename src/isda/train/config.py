"""What a run does, all of it: the resolved settings as they stand in the run folder's config.json."""

from __future__ import annotations

import json
from dataclasses import MISSING, Field, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

__all__ = ["FORMAT", "Config"]

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Config:
    """The settings of a run with every default filled in, and what the run needs to know of its data set.

    A network can be rebuilt, evaluated and used for prediction from this and the weights, without the training data.
    """

    data: str
    network: str
    method: str
    seed: int
    scale: str
    epochs: int
    average_last: int
    evaluate_every: int
    batch_size: int
    lr: float
    schedule: str
    milestones: tuple[int, ...]
    lr_factor: float
    momentum: float
    weight_decay: float
    augment: str
    precision: str
    ema: float | None
    channels_last: bool
    compile: bool
    labels: int | None
    held_out: int
    evaluated_on: str
    """"test" or "held-out"."""
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    channels: int
    image_size: tuple[int, int] | None
    train_images: int
    test_images: int
    unlabelled: int | None = None
    """Images used without labels; None for supervised methods."""
    labelled_per_batch: int | None = None
    """Labelled images of each step in a semi-supervised method; batch_size then counts the unlabelled ones."""
    normalisation: str = "channel"
    """"channel", "per-image" or "zca"."""
    method_options: dict[str, Any] = field(default_factory=dict)
    network_options: dict[str, Any] = field(default_factory=dict)
    asked: dict[str, Any] = field(default_factory=dict)
    """What the user asked for, of which all the rest follows."""
    version: str = ""
    format: int = FORMAT

    @property
    def steps_per_epoch(self) -> int:
        """Optimiser steps per epoch: full batches only, the samples left over come up in other epochs.

        In semi-supervised runs this is one pass over all images, labelled or not, for all methods alike.
        """
        return self.train_images // self.batch_size

    @property
    def targets_per_step(self) -> int:
        """Labelled images of each step, over all processes together."""
        return self.batch_size if self.labelled_per_batch is None else self.labelled_per_batch

    @property
    def total_steps(self) -> int:
        """Optimiser steps of the whole run."""
        return self.epochs * self.steps_per_epoch

    def evaluates(self, epoch: int) -> bool:
        """Whether the error is measured after an epoch (from 1): every few, and all that the result averages."""
        return epoch % self.evaluate_every == 0 or epoch > self.epochs - self.average_last

    def as_json(self) -> str:
        """The text of config.json."""
        return json.dumps(asdict(self) | {"steps_per_epoch": self.steps_per_epoch}, indent=1) + "\n"

    @classmethod
    def read(cls, path: Path) -> Config:
        """Read config.json; a ValueError names what is wrong with it."""
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is not valid JSON: {error}") from error
        if not isinstance(stored, dict) or stored.get("format") != FORMAT:
            raise ValueError(f"{path} must be a run's configuration of format {FORMAT}")
        known = {f.name: f for f in fields(cls)}
        missing = [name for name, f in known.items() if name not in stored and not _has_default(f)]
        if missing:
            raise ValueError(f"{path} lacks {', '.join(missing)}")
        values = {name: _tuples(stored[name]) for name in known if name in stored}
        return cls(**values)

    def differences(self, other: Config) -> dict[str, tuple[Any, Any]]:
        """Settings in which two configurations differ: name -> (mine, the other's)."""
        mine, theirs = asdict(self), asdict(other)
        names = [name for name in mine if name not in ("version", "asked")]
        return {name: (mine[name], theirs[name]) for name in names if mine[name] != theirs[name]}


def _has_default(f: Field[Any]) -> bool:
    return f.default is not MISSING or f.default_factory is not MISSING


def _tuples(value: Any) -> Any:
    """JSON has lists where we have tuples."""
    return tuple(value) if isinstance(value, list) else value
