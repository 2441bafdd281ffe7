"""The classes of a folder of label PNGs: from a file beside them, by the layout, or from the labels themselves."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isda.data.segmentation.pixels import IGNORED, read_ids

__all__ = ["CAMVID", "Classes", "find_classes", "numbered"]

FILES = ("classes.json", "meta.json", "classes.txt")


@dataclass(frozen=True)
class Classes:
    """Names of the classes, the class of each id that label files may hold, and colours."""

    names: tuple[str, ...]
    of_ids: dict[int, int]
    colours: tuple[str, ...] = ()


def numbered(names: Iterable[str], ignored: int | None = None, colours: Iterable[str] = ()) -> Classes:
    """Classes whose ids count from 0; ``ignored`` is the id of pixels that do not count, which is then no class.

    Example:
        >>> numbered(["sky", "road", "void"], ignored=2)
        Classes(names=('sky', 'road'), of_ids={0: 0, 1: 1, 2: 255}, colours=())
    """
    listed, shown = list(names), list(colours)
    of_ids, kept = dict[int, int](), list[int]()
    for identifier in range(max(len(listed), 0 if ignored is None else ignored + 1)):
        if identifier == ignored:
            of_ids[identifier] = IGNORED
        elif identifier < len(listed):
            of_ids[identifier] = len(kept)
            kept.append(identifier)
    return Classes(
        tuple(listed[i] for i in kept), of_ids, tuple(shown[i] for i in kept) if len(shown) == len(listed) else ()
    )


CAMVID = numbered(
    (
        *("Sky", "Building", "Pole", "Road", "Pavement", "Tree"),
        *("SignSymbol", "Fence", "Car", "Pedestrian", "Bicyclist", "Void"),
    ),
    ignored=11,
)
"""The eleven classes of CamVid as SegNet's authors grouped them; 11 is void."""


def find_classes(folder: Path, labels: Iterable[Path], camvid: bool) -> Classes:
    """The classes of a data set in a folder.

    classes.json (or meta.json) holds a list of names, or an object with "classes" and perhaps "ignore_index" and
    "colours" ("#rrggbb"); classes.txt holds a name per line. Without one, CamVid's classes where ``camvid`` and the
    labels fit; else as many as there are ids.

    Args:
        folder: of the data set.
        labels: its label files.
        camvid: whether it is laid out as CamVid is.
    """
    file = next((folder / name for name in FILES if (folder / name).is_file()), None)
    if file is not None:
        return _listed(file) if file.suffix == ".txt" else _described(file)
    found = {int(i) for path in labels for i in read_ids(path).unique()} - {IGNORED}
    if camvid and max(found, default=0) <= 11:
        return CAMVID
    return numbered(f"class {i}" for i in range(max(found, default=0) + 1))


def _listed(file: Path) -> Classes:
    names = [line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    return _checked(file, numbered(names))


def _described(file: Path) -> Classes:
    try:
        content: Any = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not JSON: {error}") from error
    described = {"classes": content} if isinstance(content, list) else content
    names = described.get("classes") if isinstance(described, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{file} must hold the names of the classes, as a list or under classes, got {names!r}")
    ignored, colours = described.get("ignore_index"), described.get("colours", [])
    if ignored is not None and (type(ignored) is not int or not 0 <= ignored <= IGNORED):
        raise ValueError(f"{file} must have an id from 0 to {IGNORED} as ignore_index, got {ignored!r}")
    if not isinstance(colours, list) or any(
        not isinstance(colour, str) or not re.fullmatch("#[0-9a-fA-F]{6}", colour) for colour in colours
    ):
        raise ValueError(f'{file} must have colours written "#rrggbb", got {colours!r}')
    if colours and len(colours) != len(names):
        raise ValueError(f"{file} must have a colour for each of its {len(names)} classes, got {len(colours)}")
    return _checked(file, numbered(names, None if ignored == IGNORED else ignored, colours))


def _checked(file: Path, classes: Classes) -> Classes:
    if not 1 <= len(classes.names) <= IGNORED or len(set(classes.names)) < len(classes.names):
        raise ValueError(f"{file} must name from 1 to {IGNORED} classes, each once, got {len(classes.names)} names")
    return classes
