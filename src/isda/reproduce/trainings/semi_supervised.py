"""Semi-supervised classifiers at any scale."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from isda.engine.grammar import split_method
from isda.errors import of_type
from isda.reproduce.scale import Scale
from isda.reproduce.training import Shrunk, Training
from isda.reproduce.trainings.classification import classifier_work, shrunk_classifier
from isda.reproduce.work import Work
from isda.semi_supervised.settings import Settings

__all__ = ["SemiSupervisedTraining", "semi_supervised"]

NETWORK = "cnn-13"
PASSES = {"pi-model": 2.0, "temporal-ensembling": 1.0, "mean-teacher": 4 / 3, "vat": 3.0}
"""Forward and backward passes per image: two views; one; a student and a forward pass of its teacher; a clean view, the
search for the adversarial direction and the view along it."""


@dataclass(frozen=True, kw_only=True)
class SemiSupervisedTraining(Training):
    """A classifier that learns from images of which few have labels."""

    task: ClassVar[str] = "semi-supervised"
    settings: Settings

    def shrunk(self, scale: Scale, root: Path | None) -> Shrunk:
        """As classifiers; the labels shrink to a fifth of the images, the others lose theirs."""
        small, told = shrunk_classifier(self.settings, scale, root)
        labelled = min(self.settings.labels or scale.images, scale.images // 5)
        return Shrunk(replace(of_type(small, Settings), labels=labelled, unlabelled=scale.images - labelled), told)

    def work(self, scale: Scale, root: Path | None) -> Work:
        """An epoch is a pass over all images, with labels or without."""
        settings: Any = self.at(scale, root).settings
        method, _ = split_method(self.method)
        images = None if settings.unlabelled is None else settings.labels + settings.unlabelled
        return classifier_work(replace(settings, labels=images), PASSES[method.removesuffix("+isda")])


def semi_supervised(data: str, method: str, labels: int, **said: Any) -> SemiSupervisedTraining:
    """A training of the paper's Table 6; what ISDA's published grid has is chosen on held-out labels."""
    settings = Settings(data=data, network=NETWORK, method=method, labels=labels, **said)
    return SemiSupervisedTraining(settings=settings, tuned=method.endswith("+isda"))
