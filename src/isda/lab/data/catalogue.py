"""The named data sets and their files, and `load`, which reads one by name or path."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from isda.lab.choices import did_you_mean
from isda.lab.data.archives import DataFile, data_root, download_file, find_file, verify_md5
from isda.lab.data.dataset import Arrays, DataSet
from isda.lab.data.normalise import PUBLISHED_STATISTICS, ChannelStatistics
from isda.lab.data.readers.folder import read_folder, read_imagenet, unpack_imagenet
from isda.lab.data.readers.npz import read_npz
from isda.lab.data.readers.small_images import (
    CIFAR10,
    CIFAR100,
    CifarVariant,
    read_cifar_binary,
    read_cifar_python,
    read_digits,
    read_fashion_mnist,
    read_svhn,
)
from isda.lab.extras import needed_by

CIFAR_URL = "https://www.cs.toronto.edu/~kriz/"
SVHN_URL = "http://ufldl.stanford.edu/housenumbers/"
FASHION_MNIST_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"


@dataclass(frozen=True)
class FileLayout:
    """A layout of a data set on disk: files, and a function that reads their paths in this order."""

    files: tuple[DataFile, ...]
    read: Callable[[list[Path]], Arrays]
    verify: bool = True
    """Whether md5s are compared at each load; False if the reader verifies a checksum itself."""


@dataclass(frozen=True, kw_only=True)
class NamedDataSet:
    """A named data set, with the published number of images."""

    name: str
    train: int
    test: int
    classes: int
    channels: int
    size: int | None
    """Height and width, None where it varies."""
    folders: tuple[str, ...] = ()
    """Folders that are searched for its files, relative to the root; downloads go into the first."""
    layouts: tuple[FileLayout, ...]
    """In order of preference; the first is the one that is downloaded."""
    published: ChannelStatistics | None = None

    def search_folders(self, root: Path) -> list[Path]:
        """The folders that are searched."""
        return [root / folder for folder in self.folders]

    def locate(self, root: Path) -> tuple[FileLayout, list[Path]] | None:
        """The first complete layout, with the paths of its files."""
        for layout in self.layouts:
            paths = [find_file(file, self.search_folders(root)) for file in layout.files]
            complete = [path for path in paths if path is not None]
            if len(complete) == len(paths):
                return layout, complete
        return None

    def instructions(self, root: Path) -> str:
        """Which files to put where, as a sentence."""
        choices = " or ".join(" and ".join(map(str, layout.files)) for layout in self.layouts)
        folders = " or ".join(map(str, self.search_folders(root)))
        return f"put {choices} into {folders}, or {self.name}.npz (x_train, y_train, x_test, y_test) into {root}"


def _cifar(name: str, number: int, variant: CifarVariant, binary_md5: str, python_md5: str) -> NamedDataSet:
    binary, python = f"cifar-{number}-binary.tar.gz", f"cifar-{number}-python.tar.gz"
    return NamedDataSet(
        name=name,
        train=50_000,
        test=10_000,
        classes=number,
        channels=3,
        size=32,
        folders=(name, "."),
        layouts=(
            FileLayout((DataFile(binary, binary_md5, CIFAR_URL + binary),), lambda p: read_cifar_binary(p[0], variant)),
            FileLayout((DataFile(python, python_md5, CIFAR_URL + python),), lambda p: read_cifar_python(p[0], variant)),
        ),
        published=PUBLISHED_STATISTICS[name],
    )


SVHN_TRAIN, SVHN_TEST, SVHN_EXTRA = (
    DataFile(f"{part}_32x32.mat", md5, f"{SVHN_URL}{part}_32x32.mat")
    for part, md5 in (
        ("train", "e26dedcc434d2e4c54c9b2d4a06d8373"),
        ("test", "eb5a983be6a315427106f1b164d9cef3"),
        ("extra", "a93ce644f1a588dc4d68dda5feec44a7"),
    )
)

_SETS = (
    NamedDataSet(
        name="digits",
        train=1_297,
        test=500,
        classes=10,
        channels=1,
        size=8,
        layouts=(FileLayout((), lambda paths: read_digits()),),
    ),
    NamedDataSet(
        name="fashion-mnist",
        train=60_000,
        test=10_000,
        classes=10,
        channels=1,
        size=28,
        # torchvision's folder, and where Debian's package dataset-fashion-mnist puts the files.
        folders=("fashion-mnist", "FashionMNIST/raw", "/usr/share/datasets/fashion-mnist"),
        layouts=(
            FileLayout(
                tuple(
                    DataFile(name, md5, FASHION_MNIST_URL + name)
                    for name, md5 in (
                        ("train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
                        ("train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
                        ("t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
                        ("t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
                    )
                ),
                lambda paths: read_fashion_mnist(*paths),
                # gzip has its own checksum, and Debian compresses the files anew.
                verify=False,
            ),
        ),
    ),
    _cifar("cifar10", 10, CIFAR10, "c32a1d4ab5d03f1284b67883e8d87530", "c58f30108f718f92721af3b95e74349a"),
    _cifar("cifar100", 100, CIFAR100, "03b5dce01913d631647c71ecec9e9cb8", "eb9058c3a382ffc7106e4002c42a8d85"),
    NamedDataSet(
        name="svhn",
        train=73_257,
        test=26_032,
        classes=10,
        channels=3,
        size=32,
        folders=("svhn", "."),
        layouts=(FileLayout((SVHN_TRAIN, SVHN_TEST), lambda paths: read_svhn(*paths)),),
        published=PUBLISHED_STATISTICS["svhn"],
    ),
    NamedDataSet(
        name="svhn-extra",
        train=73_257 + 531_131,
        test=26_032,
        classes=10,
        channels=3,
        size=32,
        folders=("svhn", "."),
        layouts=(FileLayout((SVHN_TRAIN, SVHN_TEST, SVHN_EXTRA), lambda paths: read_svhn(*paths)),),
        published=PUBLISHED_STATISTICS["svhn"],
    ),
    NamedDataSet(
        name="imagenet",
        train=1_281_167,
        test=50_000,
        classes=1_000,
        channels=3,
        size=None,
        folders=("imagenet",),
        layouts=(
            FileLayout(
                (DataFile("train"), DataFile("val")),
                lambda paths: read_imagenet(paths[0].parent),
                verify=False,
            ),
            FileLayout(
                (
                    DataFile("ILSVRC2012_devkit_t12.tar.gz", "fa75699e90414af021442c21a62c3abf"),
                    DataFile("ILSVRC2012_img_train.tar", "1d675b47d978889d74fa0da5fadfb00e"),
                    DataFile("ILSVRC2012_img_val.tar", "29b22e2961454d5413ddabcf34fc5622"),
                ),
                lambda paths: unpack_imagenet(*paths),
                # Compared while unpacking, which happens once.
                verify=False,
            ),
        ),
        published=PUBLISHED_STATISTICS["imagenet"],
    ),
)

CATALOGUE = {named.name: named for named in _SETS}
"""The named data sets, in the order of `isda data`."""


@needed_by("data.load")
def load(
    name: str | os.PathLike[str] = "digits",
    root: str | os.PathLike[str] | None = None,
    *,
    download: bool = True,
    extra: bool = False,
) -> DataSet:
    """Load a data set by name or path.

    Args:
        name: digits, fashion-mnist, cifar10, cifar100, svhn, svhn-extra or imagenet; the name of an .npz file or of
            a folder of class folders under `root`; a path to either, which wins where it exists; `folder:PATH`. For
            the known names a file `root`/NAME.npz is used before anything else.
        root: the folder of data sets; by default the environment's ISDA_DATA, else ./data.
        download: fetch the official archives that are missing, if the network allows.
        extra: with "svhn", append its 531,131 additional images to the training set (as the name svhn-extra does).

    Raises:
        FileNotFoundError: the data set is not there; the message says which files to put where.
        ValueError: an unknown name (with a suggestion), or files that are damaged or hold something else.

    Example:
        >>> load("digits")
        DataSet('digits', 1297 training and 500 test images of 1x8x8, 10 classes)
    """
    name = os.fspath(name)
    if extra:
        if name != "svhn":
            raise ValueError(f"extra=True is for the data set svhn, got {name!r}")
        name = "svhn-extra"
    root = data_root(root)
    named = CATALOGUE.get(name)
    path = named_path(name, root)
    if path is not None:
        arrays, source = read_npz(path) if path.suffix == ".npz" else read_folder(path), str(path.absolute())
    elif named is not None:
        arrays, source = _read_named(named, root, download)
    else:
        raise _unknown_name_error(name, root)
    if named is None:
        return DataSet(Path(source).stem, *arrays, source=source)
    return DataSet(name, *arrays, source=source, published=named.published)


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
    located = named.locate(root)
    if located is None and download:
        folders = named.search_folders(root)
        missing = [file for file in named.layouts[0].files if file.url and find_file(file, folders) is None]
        try:
            for file in missing:
                download_file(file, folders[0])
        except OSError as error:
            raise FileNotFoundError(
                f"the data set {named.name} is not under {root} and {error}; {named.instructions(root)}"
            ) from error
        located = named.locate(root)
    if located is None:
        raise FileNotFoundError(f"the data set {named.name} is not under {root}: {named.instructions(root)}")
    layout, paths = located
    for file, path in zip(layout.files, paths, strict=True):
        if layout.verify:
            verify_md5(path, file.md5)
    return layout.read(paths), ", ".join(map(str, paths)) or "scikit-learn"


def _unknown_name_error(name: str, root: Path) -> ValueError:
    here = [path.stem for path in root.glob("*.npz")] if root.is_dir() else []
    hint = did_you_mean(name.lower(), [*CATALOGUE, *here])
    expected = (
        f"; expected one of {', '.join(CATALOGUE)}, a folder of class folders (folder:PATH) or an .npz file, by path "
        f"or by its name under {root}; there is no such file or folder"
    )
    return ValueError(f"unknown data set {name!r}{hint or expected}")
