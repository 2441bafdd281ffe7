"""Readers of CIFAR-10 and CIFAR-100, SVHN, Fashion-MNIST, and scikit-learn's 8x8 digits.

Formats: https://www.cs.toronto.edu/~kriz/cifar.html, http://ufldl.stanford.edu/housenumbers,
https://github.com/zalandoresearch/fashion-mnist.
CIFAR's pickles are read with an unpickler that admits only numpy arrays.
"""

from __future__ import annotations

import gzip
import io
import math
import pickle
import struct
import zlib
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isda.lab.data.archives import damaged_file_error, read_members
from isda.lab.data.dataset import Arrays
from isda.lab.data.splits import balanced_sample
from isda.lab.files import check_regular_file

CIFAR_PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class CifarVariant:
    """File names and keys of the archives of CIFAR-10 or CIFAR-100."""

    train: tuple[str, ...]
    test: str
    names_text: str
    names_pickle: str
    names_key: bytes
    labels_key: bytes
    label_bytes: int
    """Bytes before the pixels of a binary record; the last of them is the label."""


CIFAR10 = CifarVariant(
    train=tuple(f"data_batch_{i}" for i in range(1, 6)),
    test="test_batch",
    names_text="batches.meta.txt",
    names_pickle="batches.meta",
    names_key=b"label_names",
    labels_key=b"labels",
    label_bytes=1,
)
CIFAR100 = CifarVariant(
    train=("train",),
    test="test",
    names_text="fine_label_names.txt",
    names_pickle="meta",
    names_key=b"fine_label_names",
    labels_key=b"fine_labels",
    label_bytes=2,
)


def read_cifar_binary(archive: Path, variant: CifarVariant) -> Arrays:
    """Read `cifar-10-binary.tar.gz` or `cifar-100-binary.tar.gz`: records of label byte(s) and 3x32x32 pixels."""
    train, test = [f"{name}.bin" for name in variant.train], f"{variant.test}.bin"
    contents = read_members(archive, [*train, test, variant.names_text])
    record = variant.label_bytes + CIFAR_PIXELS

    def split(members: list[str]) -> tuple[Tensor, Tensor]:
        data = b"".join(contents[name] for name in members)
        if not data or len(data) % record:
            raise ValueError(
                f"{archive}: {', '.join(members)} must hold records of {record} bytes, got {len(data)} bytes in all"
            )
        records = np.frombuffer(data, np.uint8).reshape(-1, record)
        labels = records[:, variant.label_bytes - 1].astype(np.int64)
        pixels = records[:, variant.label_bytes :].reshape(-1, 3, 32, 32).copy()
        return torch.from_numpy(pixels), torch.from_numpy(labels)

    names = contents[variant.names_text].decode("ascii", "replace").split()
    return Arrays(*split(train), *split([test]), tuple(names))


def read_cifar_python(archive: Path, variant: CifarVariant) -> Arrays:
    """Read `cifar-10-python.tar.gz` or `cifar-100-python.tar.gz`: pickled dicts of pixel rows and label lists."""
    members = [*variant.train, variant.test, variant.names_pickle]
    contents = {name: _unpickle(archive, name, data) for name, data in read_members(archive, members).items()}

    def split(names: tuple[str, ...]) -> tuple[Tensor, Tensor]:
        try:
            pixels = np.concatenate([contents[name][b"data"] for name in names]).reshape(-1, 3, 32, 32)
            labels = np.concatenate([contents[name][variant.labels_key] for name in names]).astype(np.int64)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{archive}: {', '.join(names)} must hold pixel rows and labels: {error!r}") from error
        return torch.from_numpy(pixels), torch.from_numpy(labels)

    try:
        names = tuple(name.decode("ascii", "replace") for name in contents[variant.names_pickle][variant.names_key])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{archive}: {variant.names_pickle} must hold the class names: {error!r}") from error
    return Arrays(*split(variant.train), *split((variant.test,)), names)


class _ArrayUnpickler(pickle.Unpickler):
    """Builds numbers, strings, lists, dicts and numpy arrays; anything else is refused."""

    # How numpy pickles an array; its module was renamed between numpy 1 and 2.
    reconstruct = np.empty(0).__reduce__()[0]
    allowed = {  # noqa: RUF012 (never changed)
        ("numpy.core.multiarray", "_reconstruct"): reconstruct,
        ("numpy._core.multiarray", "_reconstruct"): reconstruct,
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.allowed:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which image data never needs")
        return self.allowed[module, name]


def _unpickle(archive: Path, member: str, data: bytes) -> Any:
    try:
        return _ArrayUnpickler(io.BytesIO(data), encoding="bytes").load()
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise damaged_file_error(archive / member, error) from error


SVHN_CLASSES = tuple("0123456789")


def read_svhn(train: Path, test: Path, extra: Path | None = None) -> Arrays:
    """Read train_32x32.mat and test_32x32.mat; the images of extra_32x32.mat are appended to the training set."""
    x_train, y_train = read_mat(train)
    if extra is not None:
        x_extra, y_extra = read_mat(extra)
        x_train, y_train = torch.cat([x_train, x_extra]), torch.cat([y_train, y_extra])
    return Arrays(x_train, y_train, *read_mat(test), SVHN_CLASSES)


def read_mat(path: Path) -> tuple[Tensor, Tensor]:
    """Images (N, 3, 32, 32) and labels (N,); the file stores (32, 32, 3, N), and the digit 0 as label 10."""
    from scipy.io import loadmat

    check_regular_file(path)
    try:
        contents = loadmat(path, variable_names=["X", "y"])
    except Exception as error:  # loadmat's parser can fail in any way
        raise damaged_file_error(path, error) from error
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


FASHION_MNIST_CLASSES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)


def read_fashion_mnist(train_images: Path, train_labels: Path, test_images: Path, test_labels: Path) -> Arrays:
    """Read the four files train|t10k-images-idx3-ubyte.gz and train|t10k-labels-idx1-ubyte.gz."""
    train = read_idx(train_images, 3)[:, None], read_idx(train_labels, 1).long()
    test = read_idx(test_images, 3)[:, None], read_idx(test_labels, 1).long()
    return Arrays(*train, *test, FASHION_MNIST_CLASSES)


def read_idx(path: Path, dimensions: int) -> Tensor:
    """The uint8 array of a gzipped IDX file: two zero bytes, type 8, dimensions, big-endian sizes, then the bytes."""
    check_regular_file(path)
    try:
        with gzip.open(path) as stream:
            data = stream.read()
    except (OSError, EOFError, zlib.error) as error:
        raise damaged_file_error(path, error) from error
    header = 4 + 4 * dimensions
    if len(data) < header or data[:4] != bytes([0, 0, 8, dimensions]):
        raise ValueError(f"{path} must be an IDX file of bytes with {dimensions} dimensions, it starts {data[:4]!r}")
    shape = struct.unpack(f">{dimensions}I", data[4:header])
    if len(data) - header != math.prod(shape):
        raise ValueError(f"{path} must hold {math.prod(shape)} bytes for the shape {shape}, got {len(data) - header}")
    return torch.from_numpy(np.frombuffer(data, np.uint8, offset=header).reshape(shape).copy())


DIGITS_TEST_PER_CLASS = 50


def read_digits() -> Arrays:
    """The digits with values 0..16 scaled to 0..255; a fixed draw of 50 images per class is the test set.

    Example:
        >>> digits = read_digits()
        >>> digits.x_train.shape, digits.y_test.bincount().unique()
        (torch.Size([1297, 1, 8, 8]), tensor([50]))
    """
    table = _digits_table()
    images = torch.from_numpy(table[:, :-1] * (255 / 16)).round().to(torch.uint8).view(-1, 1, 8, 8)
    labels = torch.from_numpy(table[:, -1]).long()
    classes = tuple(map(str, range(10)))
    # Not isda.lab.seeds: the test set must never change.
    test = balanced_sample(labels, DIGITS_TEST_PER_CLASS * len(classes), torch.Generator().manual_seed(0))
    training = torch.ones(len(labels), dtype=torch.bool)
    training[test] = False
    return Arrays(images[training], labels[training], images[test], labels[test], classes)


def _digits_table() -> NDArray[Any]:
    """(1797, 65) pixels and label, read from scikit-learn's file because importing scikit-learn takes seconds."""
    package = find_spec("sklearn")
    for folder in package.submodule_search_locations or () if package is not None else ():
        path = Path(folder, "datasets", "data", "digits.csv.gz")
        if path.is_file():
            with gzip.open(path, "rt", encoding="ascii") as file:
                return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return np.column_stack([bunch.data, bunch.target])
