"""Files that are there as a whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["replacing", "sync", "write_text"]


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to, which takes the place of ``path`` when the block ends well.

    Its folder is made. A reader sees the old content or the new; an error leaves the old one and names ``path``.
    What is no ordinary file (a device such as /dev/null, a pipe, a link) is written into, and stays what it is.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> with replacing(folder / "made" / "note.txt") as unfinished:
        ...     _ = unfinished.write_text("whole")
        >>> (folder / "made" / "note.txt").read_text()
        'whole'
    """
    special = path.is_symlink() or (path.exists() and not path.is_file() and not path.is_dir())
    folder = Path(tempfile.gettempdir()) if special else path.parent
    unfinished = folder / f".{path.name}.{os.getpid()}.unfinished"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield unfinished
        if special:
            with unfinished.open("rb") as written, path.open("wb") as target:
                shutil.copyfileobj(written, target)
        else:
            sync(unfinished)
            os.replace(unfinished, path)
    except Exception as error:
        raise OSError(f"{path} could not be written: {error}") from error
    finally:
        with suppress(OSError):
            unfinished.unlink()


def write_text(path: Path, text: str) -> None:
    """Replace a file by ``text`` in UTF-8."""
    with replacing(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def sync(path: Path) -> None:
    """Have the disk hold what was written to a file or folder: a rename must not become durable before the content."""
    if path.is_dir() and os.name != "posix":
        return  # Windows has no file descriptors of folders, and no need of them.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
