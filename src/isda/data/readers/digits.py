"""The 8x8 handwritten digits that ship with scikit-learn: 1,797 images, no network needed."""

from __future__ import annotations

import torch

from isda.data.dataset import Arrays
from isda.data.splits import balanced_sample

__all__ = ["read_digits"]

TEST_PER_CLASS = 50


def read_digits() -> Arrays:
    """The digits with values 0..16 scaled to 0..255; a fixed draw of 50 images per class is the test set.

    Example:
        >>> digits = read_digits()
        >>> digits.x_train.shape, digits.y_test.bincount().unique()
        (torch.Size([1297, 1, 8, 8]), tensor([50]))
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = torch.from_numpy(bunch.images * (255 / 16)).round().to(torch.uint8)[:, None]
    labels = torch.from_numpy(bunch.target).long()
    classes = tuple(str(name) for name in bunch.target_names)
    # A generator of its own: the test set stays the same, however seeds are mixed.
    test = balanced_sample(labels, TEST_PER_CLASS * len(classes), torch.Generator().manual_seed(0))
    training = torch.ones(len(labels), dtype=torch.bool)
    training[test] = False
    return Arrays(images[training], labels[training], images[test], labels[test], classes)
