"""Which images of a data set a run trains on and which it is judged by."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from isda.classification.config import Config
from isda.data import DataSet, balanced_sample, hold_out, long_tailed
from isda.data.dataset import Images

__all__ = ["Evaluation", "available", "split_data"]

# The held-out part is the same for every run of a data set, so that settings are chosen on equal terms.
HOLD_OUT_SEED = 0


class Evaluation(NamedTuple):
    """The images that measure the error."""

    images: Images
    labels: Tensor
    indices: Tensor
    """Which of them."""


def available(data: DataSet, held_out: int) -> tuple[Tensor, Evaluation]:
    """(N,) the training images that a run may see, and what it is judged by: those held out, else the test images."""
    if not held_out:
        return torch.arange(len(data.y_train)), Evaluation(data.x_test, data.y_test, torch.arange(len(data.y_test)))
    training, held = hold_out(data.y_train, held_out, seed=HOLD_OUT_SEED)
    return training, Evaluation(data.x_train, data.y_train, held)


def split_data(config: Config, data: DataSet) -> tuple[Tensor, Evaluation]:
    """Hold out what the configuration says, then draw its labelled subset from the rest with its seed."""
    training, evaluation = available(data, config.held_out)
    labels = data.y_train[training]
    if config.imbalance is not None:
        return training[long_tailed(labels, config.imbalance, seed=config.seed, size=config.labels)], evaluation
    if config.labels is None:
        return training, evaluation
    return training[balanced_sample(labels, config.labels, seed=config.seed)], evaluation
