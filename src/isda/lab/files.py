"""Files that are written completely or not at all, and JSON."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """A path to write to, which takes the place of ``path`` when the block ends without an error.

    Its folder is made. A reader sees the old content or the new; an error leaves the old one and names ``path``. A
    device such as /dev/null is written into.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> with atomic_write(folder / "made" / "note.txt") as unfinished:
        ...     _ = unfinished.write_text("whole")
        >>> (folder / "made" / "note.txt").read_text()
        'whole'
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        yield path
        return
    unfinished = target.with_name(f".{target.name}.{os.getpid()}.unfinished")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield unfinished
        if target.exists():
            shutil.copymode(target, unfinished)
        flush_to_disk(unfinished)
        os.replace(unfinished, target)
    except Exception as error:
        raise OSError(f"{path} could not be written: {error}") from error
    finally:
        with suppress(OSError):
            unfinished.unlink()


def write_text(path: Path, text: str) -> None:
    """Replace a file by ``text`` in UTF-8."""
    with atomic_write(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def flush_to_disk(path: Path) -> None:
    """Flush a file to the disk: a rename must not become durable before the content."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def check_is_file(path: Path) -> None:
    """Raise FileNotFoundError unless there is a file.

    Example:
        >>> check_is_file(Path("photos.csv"))
        Traceback (most recent call last):
        FileNotFoundError: photos.csv does not exist
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} {'is not a file' if path.exists() else 'does not exist'}")


def check_regular_file(path: Path) -> None:
    """Raise ValueError for a folder, a pipe or a device; a path that does not exist passes."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} must be a regular file")


def check_is_folder(path: Path) -> None:
    """Raise FileNotFoundError unless there is a folder."""
    if not path.is_dir():
        raise FileNotFoundError(f"{path} {'is not a folder' if path.exists() else 'does not exist'}")


def file_digest(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def json_text(value: Any, indent: int | None = None) -> str:
    """Plain values as JSON; NaN and infinity become null.

    Example:
        >>> json_text({"error": 3.5, "miou": float("nan")})
        '{"error": 3.5, "miou": null}'
    """
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; raises a ValueError if it is damaged."""
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(value).__name__}")
    return value
