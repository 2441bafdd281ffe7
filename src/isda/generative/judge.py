"""The classifier on whose features images are judged: one that a user names, or one trained on the same data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from isda.classification.resolving import resolve
from isda.classification.settings import Settings
from isda.classification.task import Classification
from isda.classification.trained import Trained, load_trained
from isda.data import DataSet
from isda.engine.folder.run_folder import RunFolder
from isda.engine.folder.seal import fingerprint
from isda.engine.loop import train
from isda.engine.processes import Processes

__all__ = ["FOLDER", "Judge", "Seen", "load_judge", "own_judge"]

FOLDER = "judge"
"""Within the run's: the run folder of a judge of its own."""

STEPS = 1000
MOST_EPOCHS = 20
BATCH_SIZE = 128
WIDTH = 0.5
AT_ONCE = 500


@dataclass(frozen=True)
class Seen:
    """What a judge sees in images; on the CPU."""

    features: Tensor
    """(N, A) float64."""
    classes: Tensor
    """(N,) the most likely ones."""

    @classmethod
    def joined(cls, parts: list[Seen]) -> Seen:
        """What was seen in several parts."""
        return cls(torch.cat([part.features for part in parts]), torch.cat([part.classes for part in parts]))


@dataclass(frozen=True)
class Judge:
    """A trained classifier."""

    trained: Trained
    sha256: str
    """Of its weights."""

    @torch.no_grad()
    def see(self, images: Tensor, device: torch.device) -> Seen:
        """What it sees in uint8 images (N, C, H, W)."""
        trained, parts = self.trained, []
        network = trained.network.to(device)
        for part in images.split(AT_ONCE):
            features = network.features(trained.pipeline(part.to(device)).to(trained.config.dtype))
            classes = network.classifier(features).argmax(1)
            parts.append(Seen(features.double().cpu(), classes.cpu()))
        return Seen.joined(parts)


def load_judge(folder: Path, data: DataSet) -> Judge:
    """The classifier of a finished run of `isda train`.

    Raises:
        ValueError: no such run, or one on other images or classes than those of the data set.
    """
    trained = load_trained(folder)
    config = trained.config
    if (config.classes, config.channels, config.image_size) != (data.classes, data.channels, data.image_size):
        raise ValueError(
            f"judge must be a classifier of the classes and images of {data.name}, got {folder}, which is of "
            f"{len(config.classes)} classes of {config.data}"
        )
    return Judge(trained, str(fingerprint(RunFolder(folder).weights_file)["sha256"]))


def own_judge(folder: Path, data: DataSet, held_out: int, processes: Processes) -> Judge:
    """A small network trained by cross-entropy on all images that are not held out; trained once, then read.

    The same data give the same judge, whatever the run that it belongs to: runs can be compared.
    """
    images = len(data.y_train) - held_out
    size = max(1, min(BATCH_SIZE, images // 4))
    epochs = max(1, min(MOST_EPOCHS, round(STEPS * size / images)))
    settings = Settings(
        data=data.name,
        network="fast-cnn",
        width=WIDTH,
        method="cross-entropy",
        held_out=held_out or None,
        batch_size=size,
        epochs=epochs,
        evaluate_every=epochs,
    )
    train(resolve(settings, data), data, folder, task=Classification(), processes=processes)
    return load_judge(folder, data)
