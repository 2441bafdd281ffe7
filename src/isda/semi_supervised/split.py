"""Which images of a semi-supervised run have labels, which are used without, and which it is judged by."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from isda.classification.split import Evaluation, available
from isda.data import DataSet, semi_supervised_split
from isda.semi_supervised.config import SemiConfig

__all__ = ["SemiSplit", "split_data"]


class SemiSplit(NamedTuple):
    """Positions among the training images, and what measures the error."""

    labelled: Tensor
    unlabelled: Tensor
    """Images whose labels are not to be used."""
    evaluation: Evaluation


def split_data(config: SemiConfig, data: DataSet) -> SemiSplit:
    """Hold out what the configuration says, draw the labelled images, then those used without labels, with its seed.

    Of the labelled images a share can be held out as well: the paper chooses its settings on 25% of them.
    """
    # One of the two is held out at most. The test images are not even looked at where others judge.
    if config.held_out_labels:
        left = torch.arange(len(data.y_train))
    else:
        left, evaluation = available(data, config.held_out)
    drawn = semi_supervised_split(
        data.y_train[left], config.labels, config.seed, config.held_out_labels, config.unlabelled
    )
    if config.held_out_labels:
        evaluation = Evaluation(data.x_train, data.y_train, left[drawn.held_out])
    return SemiSplit(left[drawn.training], left[drawn.unlabelled], evaluation)
