"""Features and predictions of the images that a run was evaluated on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from isda.lab import seeds
from isda.lab.analysis.training_features import run_data
from isda.lab.data.dataset import Images
from isda.lab.tasks.classification.settings import ClassificationConfig
from isda.lab.tasks.classification.trained import load_classifier
from isda.lab.tasks.common.data import evaluation_batches, images_at, to_network_input


@dataclass(frozen=True)
class EvaluationFeatures:
    """Features of evaluation images of a run."""

    folder: Path
    config: ClassificationConfig
    features: Tensor
    """(N, A) float64, input of the classifier."""
    labels: Tensor
    """(N,)"""
    predicted: Tensor
    """(N,) classes that the network predicts."""
    confidence: Tensor
    """(N,) float64, probability of the predicted class."""
    source: Images
    """The images of the data set."""
    indices: Tensor
    """(N,) positions among them."""

    def images(self, rows: Tensor) -> Tensor | Sequence[Tensor]:
        """uint8 images of rows (K,) of ``features``, without transforms."""
        return images_at(self.source, self.indices[rows])


@torch.no_grad()
def evaluation_features(
    folder: Path, data_root: Path | None = None, device: torch.device | str = "cpu", *, most: int = 2000, seed: int = 0
) -> EvaluationFeatures:
    """Features and predictions of test images, or of held-out ones; the same images for all runs on a data set.

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
    features, logits = [], []
    for batch in batches:
        features.append(network.features(to_network_input(batch.images, config.dtype, config.channels_last)))
        logits.append(network.classifier(features[-1]))
    best = torch.cat(logits).double().cpu().softmax(1).max(1)
    return EvaluationFeatures(
        folder,
        config,
        torch.cat(features).double().cpu(),
        labels[chosen],
        predicted=best.indices,
        confidence=best.values,
        source=images,
        indices=chosen,
    )
