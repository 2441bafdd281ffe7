"""Reads SVHN (cropped digits) from its official Matlab files, http://ufldl.stanford.edu/housenumbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from isda.data.archives import damaged
from isda.data.dataset import Arrays
from isda.files import check_regular

__all__ = ["read_mat", "read_svhn"]

CLASSES = tuple("0123456789")


def read_svhn(train: Path, test: Path, extra: Path | None = None) -> Arrays:
    """Read train_32x32.mat and test_32x32.mat; the images of extra_32x32.mat are appended to the training set."""
    x_train, y_train = read_mat(train)
    if extra is not None:
        x_extra, y_extra = read_mat(extra)
        x_train, y_train = torch.cat([x_train, x_extra]), torch.cat([y_train, y_extra])
    return Arrays(x_train, y_train, *read_mat(test), CLASSES)


def read_mat(path: Path) -> tuple[Tensor, Tensor]:
    """Images (N, 3, 32, 32) and labels (N,); the file stores (32, 32, 3, N), and the digit 0 as label 10."""
    from scipy.io import loadmat

    check_regular(path)
    try:
        contents = loadmat(path, variable_names=["X", "y"])
    # loadmat meets damage with whatever its parser trips over.
    except Exception as error:
        raise damaged(path, error) from error
    missing = [name for name in ("X", "y") if name not in contents]
    if missing:
        raise ValueError(f"{path} must hold the variables X and y, {' and '.join(missing)} is missing")
    pixels, labels = contents["X"], contents["y"].astype(np.int64).ravel()
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[2:] != (3, len(labels)):
        raise ValueError(
            f"{path}: X must be uint8 of shape (32, 32, 3, {len(labels)}) for {len(labels)} labels, "
            f"got {pixels.dtype} of shape {pixels.shape}"
        )
    labels[labels == 10] = 0
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(3, 2, 0, 1))), torch.from_numpy(labels)
