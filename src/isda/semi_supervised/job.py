"""A semi-supervised run while it goes on: batches of labelled and unlabelled images, normalised once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from isda.classification.job import ImageJob
from isda.classification.split import Evaluation
from isda.data import DataSet
from isda.data.augment import Compose
from isda.engine.task import Place
from isda.errors import of_type
from isda.networks import Network
from isda.semi import defaults_for
from isda.semi.methods import ISDA_SUFFIX
from isda.semi_supervised.batches import SemiBatch, semi_batches
from isda.semi_supervised.config import SemiConfig
from isda.semi_supervised.method import SemiMethod
from isda.semi_supervised.normalisation import WHITENING_FILE, normalised, normaliser_for, whitening_for
from isda.semi_supervised.split import split_data

__all__ = ["SemiSupervisedJob"]


class SemiSupervisedJob(ImageJob):
    """Labelled images beside unlabelled ones.

    All images are normalised once: whitening them anew in each evaluation would take longer than the network.
    """

    config: SemiConfig

    def __init__(self, config: SemiConfig, data: DataSet, network: Network, method: SemiMethod, place: Place) -> None:
        processes = place.processes
        self.whiten = whitening_for(config, data, place.folder, processes, place.data_root)
        normalise = normaliser_for(config, self.whiten)
        split = split_data(config, data)
        images, labels, indices = split.evaluation
        judged = of_type(images[indices], Tensor)
        ready = normalised(judged, normalise, processes.device)
        evaluation = Evaluation(ready, labels[indices], torch.arange(len(indices)))
        super().__init__(config, network, method, place, evaluation, Compose())
        self.source = semi_batches(
            config,
            data,
            split,
            defaults_for(config.method.removesuffix(ISDA_SUFFIX), data.name),
            normalise,
            processes,
            needs_unlabelled=method.objective.needs_unlabelled,
        )

    def batches(self, epoch: int, start: int = 0) -> Iterator[SemiBatch]:
        """Both halves of each batch."""
        for batch in self.source.epoch(epoch, start):
            yield batch.to(self.config.dtype, self.config.channels_last)

    def keep(self, folder: Path) -> None:
        """The whitening: the run can then be used without the training data, and resumed to the bit."""
        if self.whiten is not None and not (folder / WHITENING_FILE).exists():
            self.whiten.save(folder / WHITENING_FILE, self.config.data_digest)
