"""One writer per run folder: a lock that dies with its owner, also on disks that several machines share."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

__all__ = ["FolderInUse", "locked"]

LOCK_FILE = ".lock"
SIGNING = 20
"""How often to look for the name of whoever holds the lock."""


class FolderInUse(ValueError):
    """Somebody else is writing into the folder."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run folder while the block runs.

    The operating system lets go of the lock when the process ends, however it ends; over NFS it does so for all
    machines. The file itself stays: removing it would let two processes hold two files of one name.

    Raises:
        FolderInUse: another process holds it; the message says which.
        OSError: the folder cannot be made or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise OSError(f"the run folder {folder} could not be made: {error}") from error
    try:
        if not _try_to_lock(descriptor):
            raise FolderInUse(f"{folder} is being written by {_owner(descriptor)}; wait for it, or stop it first")
        _sign(descriptor)
        try:
            yield
        finally:
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def _try_to_lock(descriptor: int) -> bool:
    if os.name != "posix":
        import msvcrt

        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        except OSError:
            return False
        return True
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sign(descriptor: int) -> None:
    """Say who holds it, for those who come later."""
    owner = {
        "process": os.getpid(),
        "machine": socket.gethostname(),
        "since": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(owner).encode(), 0)


def _owner(descriptor: int) -> str:
    for _ in range(SIGNING):
        try:
            owner = json.loads(os.pread(descriptor, 4096, 0))
            return f"process {owner['process']} on {owner['machine']} since {owner['since']}"
        except (ValueError, TypeError, KeyError):
            time.sleep(0.01)  # it may be about to sign
    return "another process"
