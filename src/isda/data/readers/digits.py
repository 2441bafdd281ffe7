"""The 8x8 handwritten digits that ship with scikit-learn: 1,797 images, no network needed."""

from __future__ import annotations

import gzip
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

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
    table = _table()
    images = torch.from_numpy(table[:, :-1] * (255 / 16)).round().to(torch.uint8).view(-1, 1, 8, 8)
    labels = torch.from_numpy(table[:, -1]).long()
    classes = tuple(map(str, range(10)))
    # A generator of its own: the test set stays the same, however seeds are mixed.
    test = balanced_sample(labels, TEST_PER_CLASS * len(classes), torch.Generator().manual_seed(0))
    training = torch.ones(len(labels), dtype=torch.bool)
    training[test] = False
    return Arrays(images[training], labels[training], images[test], labels[test], classes)


def _table() -> NDArray[Any]:
    """(1797, 65) pixels and label, from scikit-learn's own file: importing that library takes longer than training."""
    found = find_spec("sklearn")
    for folder in found.submodule_search_locations or () if found is not None else ():
        path = Path(folder, "datasets", "data", "digits.csv.gz")
        if path.is_file():
            with gzip.open(path, "rt", encoding="ascii") as file:
                return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return np.column_stack([bunch.data, bunch.target])
