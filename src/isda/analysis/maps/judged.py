"""The features of the images that a run was judged by: what it made of images that it had not learnt from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from isda import seeds
from isda.analysis.run_data import run_data
from isda.classification.batches import evaluation_batches, ready
from isda.classification.config import Config
from isda.classification.trained import load_trained

__all__ = ["Judged", "judged_features"]


@dataclass(frozen=True)
class Judged:
    """What a network makes of some images."""

    folder: Path
    config: Config
    features: Tensor
    """(N, A) float64, what the classifier reads."""
    labels: Tensor
    """(N,)"""


@torch.no_grad()
def judged_features(
    folder: Path, data_root: Path | None = None, device: torch.device | str = "cpu", *, most: int = 2000, seed: int = 0
) -> Judged:
    """Features of test images, or of those that a run held out; the same images for all runs of a data set.

    Args:
        folder: of a finished run of a classifier.
        data_root: where data sets are.
        device: where the network computes.
        most: images that are looked at.
        seed: of which.

    Raises:
        ValueError: no finished run of a classifier, or its data set has changed.
    """
    trained = load_trained(folder)
    config = trained.config
    data = run_data(config, data_root)
    images, labels, indices = trained.task.evaluation(config, data)
    chosen = indices[torch.randperm(len(indices), generator=seeds.generator(seed))[:most].sort().values]
    place = torch.device(device)
    network = trained.network.to(place)
    batches = evaluation_batches(images, labels, chosen, trained.pipeline, place)
    parts = [network.features(ready(batch.images, config.dtype, config.channels_last)) for batch in batches]
    return Judged(folder, config, torch.cat(parts).double().cpu(), labels[chosen])
