"""Find, download and verify the files of a data set."""

from __future__ import annotations

import hashlib
import os
import socket
import tarfile
import tempfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from isda.lab.files import check_regular_file

TIMEOUT_SECONDS = 30

PART_NAMES = {"train": ("train",), "validation": ("val", "valid", "validation"), "test": ("test",)}
"""Names of folders and files of each part of a data set."""


@dataclass(frozen=True)
class DataFile:
    """One file that a data set needs; without an md5 it is a folder."""

    name: str
    md5: str = ""
    url: str = ""

    def __str__(self) -> str:
        return f"{self.name} (md5 {self.md5})" if self.md5 else f"{self.name}/"


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """The folder that holds the data sets: the argument, else the environment's ISDA_DATA, else ./data."""
    return Path(root or os.environ.get("ISDA_DATA") or "data").expanduser().absolute()


def find_file(file: DataFile, folders: Iterable[Path]) -> Path | None:
    """The first of `folders` that holds the file."""
    return next((folder / file.name for folder in folders if (folder / file.name).exists()), None)


def verify_md5(path: Path, md5: str) -> None:
    """Raise a ValueError unless the file has this md5."""
    check_regular_file(path)
    with path.open("rb") as stream:
        digest = hashlib.md5(usedforsecurity=False)
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    if digest.hexdigest() != md5:
        raise ValueError(
            f"{path} is damaged or incomplete: its md5 is {digest.hexdigest()} instead of {md5}; "
            "delete it and load the data set again"
        )


def download_file(file: DataFile, folder: Path) -> Path:
    """Fetch a file into `folder`; it appears there only when it is complete and its md5 is right.

    Raises:
        OSError: the reason why it could not be fetched.
    """
    from torchvision.datasets.utils import download_url

    default_timeout = socket.getdefaulttimeout()
    # torchvision sets no timeout.
    socket.setdefaulttimeout(TIMEOUT_SECONDS)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".download-", dir=folder) as unfinished:
            download_url(file.url, unfinished, file.name, file.md5)
            return Path(unfinished, file.name).replace(folder / file.name)
    except (OSError, RuntimeError, HTTPException) as error:
        raise OSError(f"fetching {file.url} failed: {error}") from error
    finally:
        socket.setdefaulttimeout(default_timeout)


def read_members(archive: Path, names: Iterable[str]) -> dict[str, bytes]:
    """The contents of members of a (compressed) tar archive, named without their folder; nothing is written to disk.

    Raises:
        ValueError: the archive is damaged, or a member is missing.
    """
    check_regular_file(archive)
    expected = set(names)
    contents: dict[str, bytes] = {}
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                name = member.name.rsplit("/", 1)[-1]
                stream = tar.extractfile(member) if name in expected else None
                if stream is not None:
                    contents[name] = stream.read()
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise damaged_file_error(archive, error) from error
    if missing := sorted(expected - set(contents)):
        raise ValueError(f"{archive} does not hold {', '.join(missing)}")
    return contents


def damaged_file_error(path: Path, error: Exception) -> ValueError:
    """The error for a file whose contents end early or are invalid."""
    return ValueError(f"{path} is damaged or incomplete: {error or type(error).__name__}")
