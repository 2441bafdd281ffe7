"""Data sets, splits, whitening and augmentation.

>>> from isda.lab import data
>>> digits = data.load("digits")
>>> kept, held_out = data.hold_out(digits.y_train, size=200, seed=0)
>>> digits.x_train[kept].shape
torch.Size([1097, 1, 8, 8])
"""

from isda.lab.data.catalogue import CATALOGUE, load
from isda.lab.data.dataset import DataSet
from isda.lab.data.image_files import ImageFiles
from isda.lab.data.normalise import ChannelStatistics, channel_statistics, normalise_per_image
from isda.lab.data.splits import (
    HoldOut,
    SemiSupervisedSplit,
    balanced_sample,
    hold_out,
    semi_supervised_split,
)
from isda.lab.data.whitening import ZCAWhitening, zca_whitening

__all__ = [
    "CATALOGUE",
    "ChannelStatistics",
    "DataSet",
    "HoldOut",
    "ImageFiles",
    "SemiSupervisedSplit",
    "ZCAWhitening",
    "balanced_sample",
    "channel_statistics",
    "hold_out",
    "load",
    "normalise_per_image",
    "semi_supervised_split",
    "zca_whitening",
]
