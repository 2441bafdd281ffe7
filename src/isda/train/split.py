"""Which images of a data set a run trains on and which it is judged by."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from isda.data import DataSet, balanced_sample, hold_out
from isda.data.dataset import Images
from isda.train.config import Config

__all__ = ["Split", "split_data"]

# The held-out part is the same for every run of a data set, so that settings are chosen on equal terms.
HOLD_OUT_SEED = 0


class Split(NamedTuple):
    """Indices into the training images, and the images that measure the error."""

    training: Tensor
    images: Images
    labels: Tensor
    evaluation: Tensor
    """Indices into `images` and `labels`."""
    unlabelled: Tensor | None = None
    """Training images whose labels are not to be used, in semi-supervised runs."""


def split_data(config: Config, data: DataSet) -> Split:
    """Hold out what the configuration says, then draw its labelled subset from the rest with its seed.

    What a semi-supervised run uses without labels is drawn, with the seed as well, from what is left then.
    """
    training = torch.arange(len(data.y_train))
    images, labels, evaluation = data.x_test, data.y_test, torch.arange(len(data.y_test))
    if config.held_out:
        training, evaluation = hold_out(data.y_train, config.held_out, seed=HOLD_OUT_SEED)
        images, labels = data.x_train, data.y_train
    if config.labels is None:
        return Split(training, images, labels, evaluation)
    available, unlabelled = training, None
    training = available[balanced_sample(data.y_train[available], config.labels, seed=config.seed)]
    if config.unlabelled is not None:
        rest = available[~torch.isin(available, training)]
        order = torch.randperm(len(rest), generator=torch.Generator().manual_seed(config.seed))
        unlabelled = rest[order[: config.unlabelled]].sort().values
    return Split(training, images, labels, evaluation, unlabelled)
