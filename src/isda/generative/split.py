"""Which images of a data set a generator learns from, and which its images are compared to: as classifiers have it."""

from __future__ import annotations

from torch import Tensor

from isda.classification.split import Evaluation, available
from isda.data import DataSet, balanced_sample
from isda.generative.config import Config

__all__ = ["split_data"]


def split_data(config: Config, data: DataSet) -> tuple[Tensor, Evaluation]:
    """Hold out what the configuration says, then draw its labelled subset from the rest with its seed."""
    training, evaluation = available(data, config.held_out)
    if config.labels is None:
        return training, evaluation
    return training[balanced_sample(data.y_train[training], config.labels, seed=config.seed)], evaluation
