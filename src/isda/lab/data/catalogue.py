"""The named data sets, and `load`, which reads one by name or path."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isda.lab.choices import did_you_mean
from isda.lab.data.dataset import Arrays, DataSet
from isda.lab.data.folder import read_folder, read_imagenet
from isda.lab.data.normalise import PUBLISHED_STATISTICS
from isda.lab.data.npz import read_npz
from isda.lab.data.splits import balanced_sample
from isda.lab.extras import needed_by

DIGITS_TEST_PER_CLASS = 50
SKIP_VARIABLE = "ISDA_SKIP_UNREADABLE"
"""Set to 1 in the environment, which the processes of a comparison inherit: as `skip_unreadable` of `load`."""


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """The folder that holds the data sets: the argument, else the environment's ISDA_DATA, else ./data."""
    return Path(root or os.environ.get("ISDA_DATA") or "data").expanduser().absolute()


def _digits(folder: Path, download: bool) -> Arrays:
    """scikit-learn's digits with values 0..16 scaled to 0..255; a fixed draw of 50 images per class is the test set."""
    from sklearn.datasets import load_digits

    table: Any = load_digits()
    images = torch.from_numpy(table.images * (255 / 16)).round().to(torch.uint8)[:, None]
    labels = torch.from_numpy(table.target).long()
    classes = tuple(map(str, range(10)))
    # Not isda.lab.seeds: the test set must never change.
    test = balanced_sample(labels, DIGITS_TEST_PER_CLASS * len(classes), torch.Generator().manual_seed(0))
    training = torch.ones(len(labels), dtype=torch.bool)
    training[test] = False
    return Arrays(images[training], labels[training], images[test], labels[test], classes)


def _cifar(kind: str) -> Callable[[Path, bool], Arrays]:
    def read(folder: Path, download: bool) -> Arrays:
        from torchvision import datasets

        train, test = (getattr(datasets, kind)(folder, train=part, download=download) for part in (True, False))
        x_train, x_test = (torch.from_numpy(part.data).permute(0, 3, 1, 2).contiguous() for part in (train, test))
        return Arrays(x_train, torch.tensor(train.targets), x_test, torch.tensor(test.targets), tuple(train.classes))

    return read


def _fashion_mnist(folder: Path, download: bool) -> Arrays:
    from torchvision.datasets import FashionMNIST

    train, test = (FashionMNIST(folder, train=part, download=download) for part in (True, False))
    return Arrays(train.data[:, None], train.targets, test.data[:, None], test.targets, tuple(train.classes))


def _svhn(*training: str) -> Callable[[Path, bool], Arrays]:
    def read(folder: Path, download: bool) -> Arrays:
        from torchvision.datasets import SVHN

        def part(*splits: str) -> tuple[Tensor, Tensor]:
            sets = [SVHN(folder, split, download=download) for split in splits]
            images, labels = (np.concatenate([getattr(one, name) for one in sets]) for name in ("data", "labels"))
            return torch.from_numpy(np.ascontiguousarray(images)), torch.from_numpy(labels)

        return Arrays(*part(*training), *part("test"), tuple(map(str, range(10))))

    return read


def _imagenet(folder: Path, download: bool) -> Arrays:
    return read_imagenet(folder)


@dataclass(frozen=True)
class NamedDataSet:
    """A named data set, with the published number of images."""

    name: str
    train: int
    test: int
    classes: int
    channels: int
    size: int | None
    """Height and width, None where it varies."""
    files: tuple[str, ...]
    """What must be below its folder: downloaded archives, or folders."""
    read: Callable[[Path, bool], Arrays]
    """From its folder, and whether missing files may be downloaded; torchvision verifies what it reads."""
    fetched: bool = True
    """Whether torchvision can download it."""

    def folders(self, root: Path) -> list[Path]:
        """Where its files are searched; downloads go into the first."""
        own = root / self.name.removesuffix("-extra")
        return [own, root] if self.fetched else [own]

    def locate(self, root: Path) -> Path | None:
        """The first folder that has all files."""
        complete = (folder for folder in self.folders(root) if all((folder / file).exists() for file in self.files))
        return next(complete, None)

    def instructions(self, root: Path) -> str:
        """Which files to put where, as a sentence."""
        files, folders = " and ".join(self.files), " or ".join(map(str, self.folders(root)))
        return f"put {files} into {folders}, or {self.name}.npz (x_train, y_train, x_test, y_test) into {root}"


_FASHION = tuple(
    f"FashionMNIST/raw/{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
)
_SVHN = ("train_32x32.mat", "test_32x32.mat", "extra_32x32.mat")
_SETS = (
    NamedDataSet("digits", 1_297, 500, 10, 1, 8, (), _digits),
    NamedDataSet("fashion-mnist", 60_000, 10_000, 10, 1, 28, _FASHION, _fashion_mnist),
    NamedDataSet("cifar10", 50_000, 10_000, 10, 3, 32, ("cifar-10-python.tar.gz",), _cifar("CIFAR10")),
    NamedDataSet("cifar100", 50_000, 10_000, 100, 3, 32, ("cifar-100-python.tar.gz",), _cifar("CIFAR100")),
    NamedDataSet("svhn", 73_257, 26_032, 10, 3, 32, _SVHN[:2], _svhn("train")),
    NamedDataSet("svhn-extra", 73_257 + 531_131, 26_032, 10, 3, 32, _SVHN, _svhn("train", "extra")),
    NamedDataSet("imagenet", 1_281_167, 50_000, 1_000, 3, None, ("train", "val"), _imagenet, fetched=False),
)

CATALOGUE = {named.name: named for named in _SETS}
"""The named data sets, in the order of `isda data`."""


@needed_by("data.load")
def load(
    name: str | os.PathLike[str] = "digits",
    root: str | os.PathLike[str] | None = None,
    *,
    download: bool = True,
    skip_unreadable: bool = False,
) -> DataSet:
    """Load a data set by name or path.

    Args:
        name: digits, fashion-mnist, cifar10, cifar100, svhn, svhn-extra (with its 531,131 additional images) or
            imagenet; the name of an .npz file or of a folder of class folders under `root`; a path to either, which
            wins where it exists; `folder:PATH`. For the known names a file `root`/NAME.npz is used before anything
            else.
        root: the folder of data sets; by default the environment's ISDA_DATA, else ./data.
        download: fetch the official archives that are missing, if the network allows.
        skip_unreadable: leave out images of a folder that cannot be decoded, with a warning, instead of refusing it.

    Raises:
        FileNotFoundError: the data set is not there; the message says which files to put where.
        ValueError: an unknown name (with a suggestion), or files that are damaged or hold something else.

    Example:
        >>> load("digits")
        DataSet('digits', 1297 training and 500 test images of 1x8x8, 10 classes)
    """
    name, root = os.fspath(name), data_root(root)
    skip_unreadable = skip_unreadable or os.environ.get(SKIP_VARIABLE) == "1"
    path = named_path(name, root)
    if path is not None:
        arrays = read_npz(path) if path.suffix == ".npz" else read_folder(path, skip_unreadable)
        published = PUBLISHED_STATISTICS.get(name)
        return DataSet(
            name if name in CATALOGUE else path.stem, *arrays, source=str(path.absolute()), published=published
        )
    if name not in CATALOGUE:
        raise _unknown_name_error(name, root)
    arrays, source = _read_named(CATALOGUE[name], root, download)
    return DataSet(name, *arrays, source=source, published=PUBLISHED_STATISTICS.get(name.removesuffix("-extra")))


def named_path(name: str, root: Path) -> Path | None:
    """The .npz file or folder that a name stands for, or None if it is not one."""
    archive = root / f"{name}.npz"
    if name in CATALOGUE:
        return archive if archive.is_file() else None
    if name.startswith("folder:"):
        return Path(name.removeprefix("folder:")).expanduser()
    path = Path(name).expanduser()
    # A name with a separator or the suffix is a path even if it does not exist: the reader then says what is missing.
    if path.suffix == ".npz" or path.name != name:
        return root / path if (root / path).exists() and not path.exists() else path
    as_given = next((folder for folder in (path, root / path) if name and folder.is_dir()), None)
    return as_given or (archive if archive.is_file() else None)


def _read_named(named: NamedDataSet, root: Path, download: bool) -> tuple[Arrays, str]:
    """The arrays of a named set and their source."""
    if not named.files:
        return named.read(root, False), "scikit-learn"
    located = named.locate(root)
    if located is None and not (download and named.fetched):
        raise FileNotFoundError(f"the data set {named.name} is not under {root}: {named.instructions(root)}")
    folder = located or named.folders(root)[0]
    try:
        # torchvision unpacks archives that are there when it is told to download them.
        return named.read(folder, named.fetched), str(folder)
    except (OSError, RuntimeError, EOFError, HTTPException) as error:
        if located is not None:
            raise ValueError(f"{', '.join(named.files)} in {folder} are damaged or incomplete: {error}") from error
        raise FileNotFoundError(
            f"the data set {named.name} is not under {root} and fetching it failed ({error}); "
            f"{named.instructions(root)}"
        ) from error


def _unknown_name_error(name: str, root: Path) -> ValueError:
    here = [path.stem for path in root.glob("*.npz")] if root.is_dir() else []
    hint = did_you_mean(name.lower(), [*CATALOGUE, *here])
    expected = (
        f"; expected one of {', '.join(CATALOGUE)}, a folder of class folders (folder:PATH) or an .npz file, by path "
        f"or by its name under {root}; there is no such file or folder"
    )
    return ValueError(f"unknown data set {name!r}{hint or expected}")
