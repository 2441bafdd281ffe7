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
from typing import TYPE_CHECKING, NoReturn

from isda.lab.text import escape_control_characters, use_plain_warnings

if TYPE_CHECKING:
    from isda.lab.engine.processes import Stopped

COMMAND_WORDS: ContextVar[tuple[str, ...]] = ContextVar("COMMAND_WORDS", default=())
"""The words of the current command."""
MIN_COLUMNS = 40
"""The least width for which help texts are laid out."""

_ASCII = {"…": ".", "−": "-", "–": "-", "±": "+-", "×": "x", "λ": "lambda"}
"""Replacements for characters that the terminal's encoding lacks."""
_ENCODING_HANDLER = "isda.plain"


def _replace_character(error: UnicodeError) -> tuple[str, int]:
    """Replace a character that cannot be encoded by ASCII text or an escape sequence."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    if (character := error.object[error.start]) in _ASCII:
        return _ASCII[character], error.start + 1
    escaped, end = codecs.backslashreplace_errors(error)
    return str(escaped), end


codecs.register_error(_ENCODING_HANDLER, _replace_character)


@contextmanager
def prepare_console() -> Iterator[None]:
    """Set up streams, warnings and Ctrl-C while a command runs."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            # Closed by the user (2>&-). The null device takes the descriptor, which a file must not get.
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
    """Write buffered output; after a failure discard the rest, which would fail again when the process ends."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, or exit during an import, where compiled modules may turn it into any error."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            with suppress(OSError):
                os.write(2, b"isda: interrupted\n")
            os._exit(128 + signal.SIGINT)
        frame = frame.f_back
    raise KeyboardInterrupt


def _is_read_by_person() -> bool:
    """Whether both streams are terminals, the command does not write JSON, and this is its first process."""
    json = any(word.startswith("--json") for word in COMMAND_WORDS.get())
    return sys.stdout.isatty() and sys.stderr.isatty() and not json and os.environ.get("RANK", "0") == "0"


def print_next(hint: str) -> None:
    """Print what to do next on the terminal, after a command has done its work."""
    if _is_read_by_person():
        print(escape_control_characters(f"next: {hint}"), file=sys.stderr)


def exit_stopped(stopped: Stopped, hint: str = "run the same command to resume", quiet: bool = False) -> NoReturn:
    """End the command after a signal has stopped its runs, with the exit status of the signal."""
    if not quiet:
        print(f"isda: {stopped}; {hint}", file=sys.stderr)
    sys.exit(stopped.status)
