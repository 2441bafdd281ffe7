"""Reads CIFAR-10 and CIFAR-100 from their official archives, the binary and the Python version.

Format: https://www.cs.toronto.edu/~kriz/cifar.html. The Python version is made of pickles, which can run anything
when they are read: they are read here with nothing but numpy's array constructor within reach.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isda.data.archives import damaged, read_members
from isda.data.dataset import Arrays

__all__ = ["CIFAR10", "CIFAR100", "Variant", "read_binary", "read_python"]

PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Variant:
    """What distinguishes the archives of CIFAR-10 and CIFAR-100."""

    train: tuple[str, ...]
    test: str
    names_text: str
    names_pickle: str
    names_key: bytes
    labels_key: bytes
    label_bytes: int
    """How many bytes come before the pixels of a binary record; the last of them is the label."""


CIFAR10 = Variant(
    train=tuple(f"data_batch_{i}" for i in range(1, 6)),
    test="test_batch",
    names_text="batches.meta.txt",
    names_pickle="batches.meta",
    names_key=b"label_names",
    labels_key=b"labels",
    label_bytes=1,
)
CIFAR100 = Variant(
    train=("train",),
    test="test",
    names_text="fine_label_names.txt",
    names_pickle="meta",
    names_key=b"fine_label_names",
    labels_key=b"fine_labels",
    label_bytes=2,
)


def read_binary(archive: Path, variant: Variant) -> Arrays:
    """Read `cifar-10-binary.tar.gz` or `cifar-100-binary.tar.gz`: records of label byte(s) and 3x32x32 pixels."""
    train, test = [f"{name}.bin" for name in variant.train], f"{variant.test}.bin"
    contents = read_members(archive, [*train, test, variant.names_text])
    record = variant.label_bytes + PIXELS

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


def read_python(archive: Path, variant: Variant) -> Arrays:
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
    # A damaged pickle can fail in any of these ways, depending on where the damage is.
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise damaged(archive / member, error) from error
