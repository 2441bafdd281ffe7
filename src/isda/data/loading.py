"""`load`: from a name or a path to a data set."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from isda.data.archives import data_root, fetch, find, verify
from isda.data.dataset import Arrays, DataSet
from isda.data.folder import read_folder
from isda.data.known import KNOWN, KnownSet
from isda.data.npz import read_npz


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
            a folder of class folders under `root`; a path to either; `folder:PATH`. A file `root`/NAME.npz is used
            before anything else that carries the name.
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
    known = KNOWN.get(name)
    path = named_path(name, place)
    if path is None and known is not None:
        return _load_known(known, place, download)
    if path is None:
        raise _unknown(name, place)
    arrays = read_npz(path) if path.suffix == ".npz" else read_folder(path)
    return _data_set(name if known else path.stem, arrays, str(path), known)


def named_path(name: str, root: Path) -> Path | None:
    """The .npz file or folder that a name stands for, or None if it is not one."""
    if (root / f"{name}.npz").is_file():
        return root / f"{name}.npz"
    if name in KNOWN:
        return None
    if name.startswith("folder:"):
        return Path(name.removeprefix("folder:")).expanduser()
    path = Path(name).expanduser()
    # A name with a separator or the suffix is meant as a path, there or not: the reader then says what is missing.
    if path.suffix == ".npz" or path.name != name:
        return root / path if (root / path).exists() and not path.exists() else path
    return next((folder for folder in (root / path, path) if name and folder.is_dir()), None)


def _load_known(known: KnownSet, root: Path, download: bool) -> DataSet:
    located = known.locate(root)
    if located is None and download:
        _download_missing(known, root)
        located = known.locate(root)
    if located is None:
        raise FileNotFoundError(f"the data set {known.name} is not under {root}: {known.wanted(root)}")
    layout, paths = located
    for file, path in zip(layout.files, paths, strict=True):
        if layout.verify:
            verify(path, file.md5)
    source = ", ".join(map(str, paths)) or "scikit-learn"
    return _data_set(known.name, layout.read(paths), source, known)


def _download_missing(known: KnownSet, root: Path) -> None:
    for file in known.layouts[0].files:
        if file.url and find(file, known.places(root)) is None:
            try:
                fetch(file, known.places(root)[0])
            except OSError as error:
                raise FileNotFoundError(
                    f"the data set {known.name} is not under {root} and {error}; {known.wanted(root)}"
                ) from error


def _data_set(name: str, arrays: Arrays, source: str, known: KnownSet | None) -> DataSet:
    return DataSet(name, *arrays, source=source, published=known.published if known else None)


def _unknown(name: str, root: Path) -> ValueError:
    here = [path.stem for path in root.glob("*.npz")] if root.is_dir() else []
    close = difflib.get_close_matches(name.lower(), [*KNOWN, *here], n=1)
    suggestion = f", did you mean {close[0]!r}?" if close else ";"
    return ValueError(
        f"unknown data set {name!r}{suggestion} expected one of {', '.join(KNOWN)}, a folder of class folders "
        f"(folder:PATH) or an .npz file, by path or by its name under {root}"
    )
