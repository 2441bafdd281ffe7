"""`load`: from a name or a path to a data set."""

from __future__ import annotations

import os
from pathlib import Path

from isda.choices import did_you_mean
from isda.data.archives import data_root, fetch, find, verify
from isda.data.catalogue import CATALOGUE, NamedSet
from isda.data.dataset import Arrays, DataSet
from isda.data.readers.folder import read_folder
from isda.data.readers.npz import read_npz
from isda.extras import needed_by

__all__ = ["load", "named_path"]


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
    place = data_root(root)
    named = CATALOGUE.get(name)
    path = named_path(name, place)
    if path is None and named is not None:
        return _load_named(named, place, download)
    if path is None:
        raise _unknown(name, place)
    arrays = read_npz(path) if path.suffix == ".npz" else read_folder(path)
    return _data_set(name if named else path.stem, arrays, str(path.absolute()), named)


def named_path(name: str, root: Path) -> Path | None:
    """The .npz file or folder that a name stands for, or None if it is not one."""
    archive = root / f"{name}.npz"
    if name in CATALOGUE:
        return archive if archive.is_file() else None
    if name.startswith("folder:"):
        return Path(name.removeprefix("folder:")).expanduser()
    path = Path(name).expanduser()
    # A name with a separator or the suffix is meant as a path, there or not: the reader then says what is missing.
    if path.suffix == ".npz" or path.name != name:
        return root / path if (root / path).exists() and not path.exists() else path
    as_given = next((folder for folder in (path, root / path) if name and folder.is_dir()), None)
    return as_given or (archive if archive.is_file() else None)


def _load_named(named: NamedSet, root: Path, download: bool) -> DataSet:
    located = named.locate(root)
    if located is None and download:
        _download_missing(named, root)
        located = named.locate(root)
    if located is None:
        raise FileNotFoundError(f"the data set {named.name} is not under {root}: {named.wanted(root)}")
    layout, paths = located
    for file, path in zip(layout.files, paths, strict=True):
        if layout.verify:
            verify(path, file.md5)
    source = ", ".join(map(str, paths)) or "scikit-learn"
    return _data_set(named.name, layout.read(paths), source, named)


def _download_missing(named: NamedSet, root: Path) -> None:
    for file in named.layouts[0].files:
        if file.url and find(file, named.places(root)) is None:
            try:
                fetch(file, named.places(root)[0])
            except OSError as error:
                raise FileNotFoundError(
                    f"the data set {named.name} is not under {root} and {error}; {named.wanted(root)}"
                ) from error


def _data_set(name: str, arrays: Arrays, source: str, named: NamedSet | None) -> DataSet:
    return DataSet(name, *arrays, source=source, published=named.published if named else None)


def _unknown(name: str, root: Path) -> ValueError:
    here = [path.stem for path in root.glob("*.npz")] if root.is_dir() else []
    hint = did_you_mean(name.lower(), [*CATALOGUE, *here])
    expected = (
        f"; expected one of {', '.join(CATALOGUE)}, a folder of class folders (folder:PATH) or an .npz file, by path "
        f"or by its name under {root}"
    )
    return ValueError(f"unknown data set {name!r}{hint or expected}")
