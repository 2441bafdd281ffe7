"""PNG files from the ``pictures`` folder of runs, embedded in the page; size-limited, other files are ignored."""

from __future__ import annotations

import base64
import struct
from dataclasses import dataclass
from pathlib import Path

from isda.engine.run_records import RunRecord
from isda.report.markup import Markup, join, tag
from isda.report.summary import Comparison
from isda.report.wording import counted

FOLDER = "pictures"
MOST_PER_RUN = 4
MOST_BYTES = 2**20
"""Of one picture."""
MOST_BYTES_TOGETHER = 12 * 2**20
"""Of the pictures of a comparison."""
MOST_PIXELS = 2**24

SIGNATURE, HEADER, END = b"\x89PNG\r\n\x1a\n", b"\x00\x00\x00\x0dIHDR", b"\x00\x00\x00\x00IEND\xaeB`\x82"


@dataclass(frozen=True)
class Picture:
    """A PNG file as it is."""

    name: str
    data: bytes
    width: int
    height: int


def png_size(data: bytes) -> tuple[int, int] | None:
    """Width and height of a PNG file; None if it is none, is cut short, or has more pixels than a page should decode.

    Example:
        >>> png_size(b"<svg/>") is None
        True
    """
    if not data.startswith(SIGNATURE + HEADER) or not data.endswith(END) or len(data) < 33 + len(END):
        return None
    width, height = struct.unpack(">II", data[16:24])
    return (width, height) if 0 < width * height <= MOST_PIXELS else None


def run_pictures(run: RunRecord) -> tuple[list[Picture], int]:
    """The first pictures of a run by name, and how many files beside them are not shown.

    Links are not followed, and nothing is read beyond the bound: the folder may come from anywhere.
    """
    folder = run.folder / FOLDER
    if folder.is_symlink() or not folder.is_dir():
        return [], 0
    found: list[Picture] = []
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() == ".png")
    for path in files:
        data = b"" if len(found) == MOST_PER_RUN else _bounded(path)
        size = png_size(data)
        if size is not None:
            found.append(Picture(path.stem, data, *size))
    return found, len(files) - len(found)


def picture_figures(comparison: Comparison) -> Markup | None:
    """The pictures of one run of each method, those of the same name below one another; None if there are none."""
    shown: dict[str, list[tuple[str, int, Picture]]] = {}
    unshown, size = 0, 0
    for method in comparison.methods:
        for run in method.runs:
            pictures, others = run_pictures(run)
            if not pictures:
                continue
            unshown += others
            for picture in pictures:
                if size + len(picture.data) > MOST_BYTES_TOGETHER:
                    unshown += 1
                    continue
                size += len(picture.data)
                shown.setdefault(picture.name, []).append((method.label, run.seed, picture))
            break
    if not shown:
        return None
    parts: list[str] = [_figure(*one) for same in shown.values() for one in same]
    if unshown:
        told = f"{counted(unshown, 'further file')} in the folders of these runs: too many, too large, or no PNG."
        parts.append(tag("p", told, class_="note"))
    return join(parts)


def _figure(label: str, seed: int, picture: Picture) -> Markup:
    told = f"{picture.name}: {label}, seed {seed}."
    source = f"data:image/png;base64,{base64.b64encode(picture.data).decode('ascii')}"
    image = tag("img", src=source, alt=told, width=picture.width, height=picture.height, class_="picture")
    return tag("figure", image, tag("figcaption", told))


def _bounded(path: Path) -> bytes:
    """The content of an ordinary file; nothing for one that is too large, no file, or cannot be read."""
    try:
        if path.is_symlink() or not path.is_file():
            return b""
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError:
        return b""
    return data if len(data) <= MOST_BYTES else b""
