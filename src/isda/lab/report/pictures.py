"""PNG files from the ``pictures`` folder of runs, embedded in the page; size-limited, other files are ignored."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from isda.lab.engine.run_records import RunRecord
from isda.lab.report.markup import Markup, data_uri, join, tag
from isda.lab.report.summary import Comparison
from isda.lab.report.wording import counted

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
    """A PNG file."""

    name: str
    data: bytes
    width: int
    height: int


def png_size(data: bytes) -> tuple[int, int] | None:
    """Width and height of a PNG file; None if it is not a PNG file, truncated, or has too many pixels.

    Example:
        >>> png_size(b"<svg/>") is None
        True
    """
    if not data.startswith(SIGNATURE + HEADER) or not data.endswith(END) or len(data) < 33 + len(END):
        return None
    width, height = struct.unpack(">II", data[16:24])
    return (width, height) if 0 < width * height <= MOST_PIXELS else None


def run_pictures(run: RunRecord) -> tuple[list[Picture], int]:
    """The first pictures of a run by name, and the number of other files.

    Links are not followed and nothing is read beyond the size limit: the folder is not trusted.
    """
    folder = run.folder / FOLDER
    if folder.is_symlink() or not folder.is_dir():
        return [], 0
    pictures: list[Picture] = []
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() == ".png")
    for path in files:
        data = b"" if len(pictures) == MOST_PER_RUN else _read_limited(path)
        size = png_size(data)
        if size is not None:
            pictures.append(Picture(path.stem, data, *size))
    return pictures, len(files) - len(pictures)


def picture_figures(comparison: Comparison) -> Markup | None:
    """The pictures of one run of each method, grouped by name; None if there are none."""
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
    parts: list[str] = [_figure(*entry) for same in shown.values() for entry in same]
    if unshown:
        note = f"{counted(unshown, 'further file')} in the folders of these runs: too many, too large, or not PNG."
        parts.append(tag("p", note, class_="note"))
    return join(parts)


def _figure(label: str, seed: int, picture: Picture) -> Markup:
    caption = f"{picture.name}: {label}, seed {seed}."
    image = tag(
        "img", src=data_uri(picture.data), alt=caption, width=picture.width, height=picture.height, class_="picture"
    )
    return tag("figure", image, tag("figcaption", caption))


def _read_limited(path: Path) -> bytes:
    """The content of a regular file; empty if it is too large or cannot be read."""
    try:
        if path.is_symlink() or not path.is_file():
            return b""
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError:
        return b""
    return data if len(data) <= MOST_BYTES else b""
