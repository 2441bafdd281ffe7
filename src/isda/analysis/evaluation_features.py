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
    """Features of evaluation images of a run."""

    folder: Path
    config: ClassificationConfig
    features: Tensor
    """(N, A) float64, input of the classifier."""
    labels: Tensor
    """(N,)"""


@torch.no_grad()
def evaluation_features(
    folder: Path, data_root: Path | None = None, device: torch.device | str = "cpu", *, most: int = 2000, seed: int = 0
) -> EvaluationFeatures:
    """Features of test images, or of the images that a run held out; the same images for all runs on a data set.

    Raises:
        ValueError: not a finished run of a classifier, or its data set has changed.
    """
    trained = load_classifier(folder)
    config = trained.config
    data = run_data(config, data_root)
    images, labels, indices = trained.task.evaluation(config, data)
    chosen = indices[torch.randperm(len(indices), generator=seeds.generator(seed))[:most].sort().values]
    device = torch.device(device)
    network = trained.network.to(device)
    batches = evaluation_batches(images, labels, chosen, trained.pipeline, device)
    parts = [network.features(to_network_input(batch.images, config.dtype, config.channels_last)) for batch in batches]
    return EvaluationFeatures(folder, config, torch.cat(parts).double().cpu(), labels[chosen])
