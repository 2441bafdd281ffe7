"""Atomic writes: a file is written completely or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

_UNFINISHED: dict[Path, int] = {}
"""What is being written, and by which process: a forked one inherits the rest of the dict."""


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """A path to write to, which takes the place of ``path`` when the block ends without an error.

    Its folder is made. A reader sees the old content or the new; an error leaves the old one and names ``path``. A file
    that is replaced keeps its permissions. Of a link, the file that it points to is replaced. What is no regular file
    (a device such as /dev/null, a pipe) is written into, and stays what it is.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> with atomic_write(folder / "made" / "note.txt") as unfinished:
        ...     _ = unfinished.write_text("whole")
        >>> (folder / "made" / "note.txt").read_text()
        'whole'
    """
    try:
        old = _mode(path)
        into = _is_written_into(path, old)
        target = Path(os.path.realpath(path)) if path.is_symlink() else path
        folder = Path(tempfile.gettempdir()) if into else target.parent
        folder.mkdir(parents=True, exist_ok=True)
        with _unfinished_file(folder, private=old is not None) as (unfinished, made):
            yield unfinished
            if into:
                with unfinished.open("rb") as written, path.open("wb") as stream:
                    shutil.copyfileobj(written, stream)
            else:
                # Set at the end: a library may have replaced the file made here by another one.
                os.chmod(unfinished, made if old is None else stat.S_IMODE(old) & 0o777)
                flush_to_disk(unfinished)
                os.replace(unfinished, target)
    except Exception as error:
        raise OSError(f"{path} could not be written: {error}") from error


def _mode(path: Path) -> int | None:
    """The type and permissions of what a path leads to, or None.

    By `os.stat` and not `os.readlink`, which refuses links of other users in shared folders such as /tmp.
    """
    try:
        return os.stat(path).st_mode
    except FileNotFoundError:
        return None


def _is_written_into(path: Path, mode: int | None) -> bool:
    """Whether a path is a device or an open stream: /dev/stdout may lead to a regular file that more is printed to."""
    if mode is None or stat.S_ISDIR(mode):
        return False
    of_a_process = path.is_symlink() and os.path.realpath(path.parent).startswith(("/dev", "/proc/"))
    return of_a_process or not stat.S_ISREG(mode)


@contextmanager
def _unfinished_file(folder: Path, private: bool) -> Iterator[tuple[Path, int]]:
    """A new file in a folder under an unpredictable name, and its permissions; removed at the end.

    SIGTERM, whose default action runs no ``finally``, removes it too if the main thread writes it. Where the process
    handles the signal itself, that handler decides.

    Args:
        folder: where.
        private: only the owner may read it; otherwise the umask decides.
    """
    path, process = folder / f".{secrets.token_hex(8)}.unfinished", os.getpid()
    main = threading.current_thread() is threading.main_thread()
    default = main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if default:
        signal.signal(signal.SIGTERM, _end)
    _UNFINISHED[path] = process
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
        descriptor = os.open(path, flags, 0o600 if private else 0o666)
        mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
        os.close(descriptor)
        yield path, mode
    finally:
        with suppress(OSError):
            path.unlink()
        _UNFINISHED.pop(path, None)
        if default:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _end(number: int, frame: FrameType | None) -> None:
    """Remove what this process has not finished, and end as the signal does by default."""
    for path, process in list(_UNFINISHED.items()):
        if process == os.getpid():
            with suppress(OSError):
                path.unlink()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def check_regular_file(path: Path) -> None:
    """Raise ValueError for anything but a regular file: a named pipe waits for a writer, a device may never end.

    A path that does not exist passes: opening it raises the error.

    Example:
        >>> check_regular_file(Path(os.devnull))
        Traceback (most recent call last):
        ValueError: /dev/null must be a regular file, got a device
    """
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return
    if stat.S_ISREG(mode):
        return
    kinds = {stat.S_ISDIR: "a folder", stat.S_ISFIFO: "a named pipe", stat.S_ISSOCK: "a socket"}
    kind = next((name for is_kind, name in kinds.items() if is_kind(mode)), "a device")
    raise ValueError(f"{path} must be a regular file, got {kind}")


def check_is_file(path: Path) -> None:
    """Raise FileNotFoundError unless there is a file.

    Example:
        >>> check_is_file(Path("photos.csv"))
        Traceback (most recent call last):
        FileNotFoundError: photos.csv does not exist
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} {'is not a file' if path.exists() else 'does not exist'}")


def check_is_folder(path: Path) -> None:
    """Raise FileNotFoundError unless there is a folder."""
    if not path.is_dir():
        raise FileNotFoundError(f"{path} {'is not a folder' if path.exists() else 'does not exist'}")


def write_text(path: Path, text: str) -> None:
    """Replace a file by ``text`` in UTF-8."""
    with atomic_write(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def flush_to_disk(path: Path) -> None:
    """Flush a file or folder to the disk: a rename must not become durable before the content."""
    if path.is_dir() and os.name != "posix":
        return  # Windows has no file descriptors of folders, and no need of them.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
