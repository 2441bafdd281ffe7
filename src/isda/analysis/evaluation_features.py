"""Features of the images that a run was evaluated on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from isda._utils import seeds
from isda.analysis.training_features import run_data
from isda.tasks.classification.settings import ClassificationConfig
from isda.tasks.classification.trained import load_classifier
from isda.tasks.common.data import evaluation_batches, to_network_input


@dataclass(frozen=True)
class EvaluationFeatures:
    """What a network makes of some images."""

    folder: Path
    config: ClassificationConfig
    features: Tensor
    """(N, A) float64, what the classifier reads."""
    labels: Tensor
    """(N,)"""


@torch.no_grad()
def evaluation_features(
    folder: Path, data_root: Path | None = None, device: torch.device | str = "cpu", *, most: int = 2000, seed: int = 0
) -> EvaluationFeatures:
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
    trained = load_classifier(folder)
    config = trained.config
    data = run_data(config, data_root)
    images, labels, indices = trained.task.evaluation(config, data)
    chosen = indices[torch.randperm(len(indices), generator=seeds.generator(seed))[:most].sort().values]
    place = torch.device(device)
    network = trained.network.to(place)
    batches = evaluation_batches(images, labels, chosen, trained.pipeline, place)
    parts = [network.features(to_network_input(batch.images, config.dtype, config.channels_last)) for batch in batches]
    return EvaluationFeatures(folder, config, torch.cat(parts).double().cpu(), labels[chosen])
