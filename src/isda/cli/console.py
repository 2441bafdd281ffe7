"""Standard streams, warnings and Ctrl-C of a command."""

from __future__ import annotations

import codecs
import os
import shutil
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from io import TextIOWrapper
from types import FrameType

from isda._utils.text import use_plain_warnings

COMMAND_WORDS: ContextVar[tuple[str, ...]] = ContextVar("SAID", default=())
"""The words of the command that runs."""
MIN_COLUMNS = 40
"""A narrower terminal breaks lines itself: help texts cannot be laid out in a few columns."""

_ASCII = {"…": ".", "−": "-", "–": "-", "±": "+-", "×": "x", "λ": "lambda"}
"""What stands for letters of ours where a terminal lacks them."""
_ENCODING_HANDLER = "isda.plain"


def _replace_character(error: UnicodeError) -> tuple[str, int]:
    """A letter that a terminal lacks is spelt in another way, or shown by its code."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    if (letter := error.object[error.start]) in _ASCII:
        return _ASCII[letter], error.start + 1
    spelt, end = codecs.backslashreplace_errors(error)
    return str(spelt), end


codecs.register_error(_ENCODING_HANDLER, _replace_character)


@contextmanager
def prepare_console() -> Iterator[None]:
    """Make the process fit for a command while the block runs."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            # Closed by the user (2>&-). The null device takes the free number: a file of ours must not become stderr.
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        stream = getattr(sys, name)
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=_ENCODING_HANDLER)
    columns = os.environ.get("COLUMNS")
    if shutil.get_terminal_size().columns < MIN_COLUMNS:
        os.environ["COLUMNS"] = str(MIN_COLUMNS)
    before, on_interrupt = warnings.formatwarning, signal.getsignal(signal.SIGINT)
    use_plain_warnings()
    ours = on_interrupt is signal.default_int_handler and threading.current_thread() is threading.main_thread()
    if ours:
        signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        warnings.formatwarning = before
        os.environ.pop("COLUMNS", None)
        if columns is not None:
            os.environ["COLUMNS"] = columns
        if ours:
            signal.signal(signal.SIGINT, on_interrupt)
        _flush_output()


def _flush_output() -> None:
    """Write what is still buffered; where nobody takes it, it must not fail again when the process ends."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _interrupt(number: int, frame: FrameType | None) -> None:
    """A KeyboardInterrupt, but in the middle of an import, which compiled modules may turn into anything."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            with suppress(OSError):
                os.write(2, b"isda: interrupted\n")
            os._exit(128 + signal.SIGINT)
        frame = frame.f_back
    raise KeyboardInterrupt
