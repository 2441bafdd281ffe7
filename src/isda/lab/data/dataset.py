"""`DataSet`: training and test images with labels, class names and channel statistics."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from isda.lab.data.image_files import ImageFiles
from isda.lab.data.normalise import ChannelStatistics, channel_statistics

Images = Tensor | ImageFiles


class Arrays(NamedTuple):
    """The unchecked result of a reader."""

    x_train: Images
    y_train: Tensor
    x_test: Images
    y_test: Tensor
    classes: tuple[str, ...]


@dataclass(frozen=True, eq=False, repr=False)
class DataSet:
    """Images and labels for training and testing, checked once when it is made.

    `x_train` and `x_test` are uint8 tensors (N, C, H, W), or `ImageFiles` that decode on access where the images
    differ in size or do not fit in memory; both take `x[i]`, `x[indices]` and `len(x)`. `y_train` and `y_test`
    are int64 tensors (N,) with values in 0..len(classes)-1.

    Example:
        >>> import torch
        >>> x, y = torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 0, 1])
        >>> DataSet("tiny", x, y, x, y, classes=("cat", "dog"))
        DataSet('tiny', 4 training and 4 test images of 1x8x8, 2 classes)
    """

    name: str
    x_train: Images
    y_train: Tensor
    x_test: Images
    y_test: Tensor
    classes: tuple[str, ...]
    source: str = ""
    """Where the images were read from."""
    published: ChannelStatistics | None = None
    """The commonly used mean and standard deviation of this set, if there are any."""

    def __post_init__(self) -> None:
        for split, images, labels in (("train", self.x_train, self.y_train), ("test", self.x_test, self.y_test)):
            if isinstance(images, Tensor) and (images.dtype != torch.uint8 or images.dim() != 4):
                raise ValueError(
                    f"x_{split} of {self.name} must be uint8 of shape (N, C, H, W), got {images.dtype} of shape "
                    f"{tuple(images.shape)}"
                )
            check_labels(f"y_{split} of {self.name}", labels, len(images), len(self.classes))
        train, test = self.x_train, self.x_test
        if isinstance(train, Tensor) and isinstance(test, Tensor) and train.shape[1:] != test.shape[1:]:
            raise ValueError(
                f"{self.name}: training and test images must have one shape (C, H, W), "
                f"got {tuple(train.shape[1:])} and {tuple(test.shape[1:])}"
            )

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.classes)

    @property
    def channels(self) -> int:
        """1 for grey images, 3 for colour."""
        return self.x_train.channels if isinstance(self.x_train, ImageFiles) else self.x_train.shape[1]

    @property
    def image_size(self) -> tuple[int, int] | None:
        """(height, width), or None where the images are decoded on access and may differ."""
        if isinstance(self.x_train, ImageFiles):
            return None
        return self.x_train.shape[2], self.x_train.shape[3]

    @cached_property
    def digest(self) -> str:
        """A digest of labels, sizes and class names, by which runs notice that a data set has changed."""
        sizes = [
            [len(images), images.channels] if isinstance(images, ImageFiles) else list(images.shape)
            for images in (self.x_train, self.x_test)
        ]
        digest = hashlib.sha256(json.dumps([sizes, self.classes]).encode())
        for labels in (self.y_train, self.y_test):
            digest.update(labels.cpu().numpy().tobytes())
        return digest.hexdigest()

    @cached_property
    def statistics(self) -> ChannelStatistics:
        """Mean and standard deviation per channel of pixels in 0..1: the published ones, else the training set's."""
        return self.published or channel_statistics(self.x_train)

    @property
    def mean(self) -> tuple[float, ...]:
        """Mean per channel of pixels in 0..1, see `statistics`."""
        return self.statistics.mean

    @property
    def std(self) -> tuple[float, ...]:
        """Standard deviation per channel of pixels in 0..1, see `statistics`."""
        return self.statistics.std

    def __repr__(self) -> str:
        size = "x".join(map(str, (self.channels, *self.image_size))) if self.image_size else "various sizes"
        return (
            f"DataSet({self.name!r}, {len(self.y_train)} training and {len(self.y_test)} test images of {size}, "
            f"{self.num_classes} classes)"
        )


def check_labels(what: str, labels: Tensor, num_images: int, num_classes: int) -> None:
    """Raise a ValueError unless `labels` is int64 (num_images,) with values in 0..num_classes-1."""
    if labels.dtype != torch.int64 or labels.shape != (num_images,):
        raise ValueError(
            f"{what} must be int64 of shape ({num_images},), one label per image, "
            f"got {labels.dtype} of shape {tuple(labels.shape)}"
        )
    if num_images == 0:
        raise ValueError(f"{what} is empty; at least one image is needed")
    outside = (labels < 0) | (labels >= num_classes)
    if outside.any():
        first = int(outside.nonzero()[0])
        raise ValueError(
            f"{what} holds the label {int(labels[first])} at position {first}; "
            f"with {num_classes} classes labels must be in 0..{num_classes - 1}"
        )
