"""Generators of training images at any scale, judged by a classifier of the same reproduction."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import torch

from isda.generative.recipes import BATCH_SIZE
from isda.generative.recipes import STEPS as PUBLISHED_STEPS
from isda.generative.settings import Settings
from isda.networks.generative.layers import DiscriminatorBody
from isda.reproduce.scale import Scale
from isda.reproduce.sizes import Size, count_size
from isda.reproduce.training import Shrunk, Training
from isda.reproduce.trainings.classification import classifier, shrunk_classifier
from isda.reproduce.work import Work, training_work

__all__ = ["GeneratorTraining", "generator"]

WIDTHS = {"small": 0.25, "smoke": 0.0625}
EPOCHS = {"small": 100, "smoke": 2}
PLAYERS = 4
"""Passes of about a discriminator's cost in a step: it sees real and generated images, and both are made."""


@dataclass(frozen=True, kw_only=True)
class GeneratorTraining(Training):
    """A generator of images of each class."""

    task: ClassVar[str] = "generation"
    settings: Settings

    def shrunk(self, scale: Scale, root: Path | None) -> Shrunk:
        """The data of the classifier that it makes images for; narrower, for fewer epochs."""
        judge = self.needs["judge"]
        small: Any = shrunk_classifier(judge.settings, scale, root).settings
        smaller = replace(
            self.settings,
            data=small.data,
            labels=small.labels,
            epochs=EPOCHS[scale.name],
            evaluate_every=EPOCHS[scale.name],
            batch_size=scale.batch_size,
            width=WIDTHS[scale.name],
        )
        return Shrunk(smaller, (f"generators have {WIDTHS[scale.name]:g} of their channels",))

    def work(self, scale: Scale, root: Path | None) -> Work:
        """Of both players."""
        settings: Any = self.at(scale, root).settings
        samples = PUBLISHED_STEPS * BATCH_SIZE if settings.epochs is None else settings.epochs * settings.labels
        return training_work(*_size(settings.width or 1.0), PLAYERS * samples)


def generator(data: str, method: str) -> GeneratorTraining:
    """A generator of the paper's Table 5, judged by the plain ResNet-110 of the same data."""
    judge = classifier(data, "resnet-110", "cross-entropy")
    return GeneratorTraining(settings=Settings(data=data, method=method), needs={"judge": judge})


@cache
def _size(width: float) -> Size:
    with torch.device("meta"):
        made = DiscriminatorBody(3, 32, width)
    return count_size(made, 32)
