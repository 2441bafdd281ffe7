"""Reads Fashion-MNIST from its official files in IDX format, https://github.com/zalandoresearch/fashion-mnist."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from isda.data.archives import damaged
from isda.data.dataset import Arrays
from isda.files import check_regular

__all__ = ["read_fashion_mnist", "read_idx"]

CLASSES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")


def read_fashion_mnist(train_images: Path, train_labels: Path, test_images: Path, test_labels: Path) -> Arrays:
    """Read the four files train|t10k-images-idx3-ubyte.gz and train|t10k-labels-idx1-ubyte.gz."""
    return Arrays(
        read_idx(train_images, 3)[:, None],
        read_idx(train_labels, 1).long(),
        read_idx(test_images, 3)[:, None],
        read_idx(test_labels, 1).long(),
        CLASSES,
    )


def read_idx(path: Path, dimensions: int) -> Tensor:
    """The uint8 array of a gzipped IDX file: two zero bytes, type 8, dimensions, big-endian sizes, then the bytes."""
    check_regular(path)
    try:
        with gzip.open(path) as stream:
            data = stream.read()
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(path, error) from error
    header = 4 + 4 * dimensions
    if len(data) < header or data[:4] != bytes([0, 0, 8, dimensions]):
        raise ValueError(f"{path} must be an IDX file of bytes with {dimensions} dimensions, it starts {data[:4]!r}")
    shape = struct.unpack(f">{dimensions}I", data[4:header])
    if len(data) - header != math.prod(shape):
        raise ValueError(f"{path} must hold {math.prod(shape)} bytes for the shape {shape}, got {len(data) - header}")
    return torch.from_numpy(np.frombuffer(data, np.uint8, offset=header).reshape(shape).copy())
