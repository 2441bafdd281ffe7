"""What the arrays of an .npz file say of themselves, read and checked before any of them is loaded."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

__all__ = ["Header", "read_headers"]

# No deflated byte stands for more than this many: what claims more was not written by anyone.
MOST_INFLATION = 1032


class Header(NamedTuple):
    """Shape and type of an array."""

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]


def read_headers(path: Path, archive: zipfile.ZipFile) -> dict[str, Header]:
    """The header of each .npy member, by its name without the suffix.

    Raises:
        ValueError: an array holds Python objects, or claims another size than the file has room for.
    """
    members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
    room = path.stat().st_size
    return {member.filename.removesuffix(".npy"): _header(archive, member, room) for member in members}


def _header(archive: zipfile.ZipFile, member: zipfile.ZipInfo, room: int) -> Header:
    with archive.open(member) as stream:
        # Version 1 has a short header, version 2 a long one.
        short = np.lib.format.read_magic(stream) == (1, 0)
        read = np.lib.format.read_array_header_1_0 if short else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(stream)
        start = stream.tell()
    if dtype.hasobject:
        raise ValueError(f"{member.filename} holds Python objects, it is no array of plain numbers or text")
    claimed = math.prod(shape) * dtype.itemsize
    held = member.file_size - start
    if min(shape, default=0) < 0 or claimed != held:
        raise ValueError(f"{member.filename} claims {claimed} bytes of {dtype} {shape}, the file holds {held}")
    if member.compress_size > room or member.file_size > member.compress_size * MOST_INFLATION:
        raise ValueError(f"{member.filename} claims {member.file_size} bytes, the file has {room}")
    return Header(shape, dtype)
