"""One-line descriptions of exceptions, with the location of user code that failed.

ValueError, OSError and MissingExtra raised by a ``raise`` statement of this package are shown as they are.
The same classes raised by libraries, user code or built-in functions are recognised by their traceback.
"""

from __future__ import annotations

import dis
import os
import sysconfig
import traceback
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from isda._utils.extras import MissingExtra

DEBUG_VARIABLE = "ISDA_DEBUG"
"""Set to 1 in the environment: show tracebacks, as ``--debug`` does."""
INTERNAL = "internal error: "
"""Beginning of the description of an error that comes neither from a check of this package nor from user code."""

_Kind = TypeVar("_Kind")
_SENTENCES = (ValueError, OSError, MissingExtra)
_RAISE_STATEMENT = dis.opmap["RAISE_VARARGS"]
_INSTALLED = ("site-packages", "dist-packages")
_STANDARD_LIBRARY = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")})
_LONGEST = 300
"""Letters of a library's message that are shown; torch may append pages."""
_NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "Cannot allocate memory")


def debugging() -> bool:
    """Whether tracebacks are requested by the environment."""
    return os.environ.get(DEBUG_VARIABLE, "") not in ("", "0")


def describe_error(error: BaseException) -> str:
    """One line that says what happened, and whose code failed unless this package raised the error.

    Args:
        error: one that was raised and caught.

    Example:
        >>> try:
        ...     [].pop()
        ... except IndexError as error:
        ...     print(describe_error(error))
        internal error: IndexError: pop from empty list
    """
    if is_package_error(error):
        return str(error)
    message = " ".join(str(error).split())
    if len(message) > _LONGEST:
        message = f"{message[:_LONGEST]}..."
    if _lacks_memory(error):
        return f"out of memory: {message or type(error).__name__}; choose a smaller batch, network or data set"
    if isinstance(error, OSError) and error.errno is not None:
        return message
    description = f"{type(error).__name__}: {message}" if message else type(error).__name__
    if (location := user_location(error)) is not None:
        return f"in {location}: {description}"
    library = _library(error)
    return f"{INTERNAL}in {library}: {description}" if library else f"{INTERNAL}{description}"


def is_package_error(error: BaseException) -> bool:
    """Whether the message is a sentence that this package raised for its users."""
    innermost = _innermost(error)
    if innermost is None or not isinstance(error, _SENTENCES):
        return False
    instruction = innermost.tb_frame.f_code.co_code[innermost.tb_lasti]
    return _package(innermost) == "isda" and instruction == _RAISE_STATEMENT


def user_location(error: BaseException) -> str | None:
    """FILE, line N of the user's own code that failed, or called what failed; None where it had no part in it."""
    if isinstance(error, SyntaxError) and error.filename and not _is_library(error.filename):
        return f"{error.filename}, line {error.lineno}"
    entry, location = error.__traceback__, None
    while entry is not None:
        file = entry.tb_frame.f_code.co_filename
        if _package(entry) != "isda" and not _is_library(file):
            location = f"{file}, line {entry.tb_lineno}"
        entry = entry.tb_next
    return location


def expect_type(value: object, kind: type[_Kind]) -> _Kind:
    """The value, which must be of this type; for type checkers.

    Raises:
        TypeError: it is not, which is a bug in this package.

    Example:
        >>> expect_type(None, int)
        Traceback (most recent call last):
        TypeError: expected int, got None
    """
    if not isinstance(value, kind):
        raise TypeError(f"expected {kind.__name__}, got {'None' if value is None else type(value).__name__}")
    return value


def traceback_text(error: BaseException) -> str:
    """The traceback, with those of the errors that it follows from."""
    return "".join(traceback.format_exception(type(error), error, error.__traceback__))


def _innermost(error: BaseException) -> TracebackType | None:
    entry = error.__traceback__
    while entry is not None and entry.tb_next is not None:
        entry = entry.tb_next
    return entry


def _package(entry: TracebackType) -> str:
    return str(entry.tb_frame.f_globals.get("__name__", "")).partition(".")[0]


def _is_library(file: str) -> bool:
    """Whether a file was installed, came with Python, or is none, such as code that a program has made."""
    path = Path(file)
    return file.startswith("<") or any(name in path.parts for name in _INSTALLED) or file.startswith(_STANDARD_LIBRARY)


def _library(error: BaseException) -> str | None:
    innermost = _innermost(error)
    package = _package(innermost) if innermost is not None else ""
    return package if package not in ("", "isda", "__main__") else None


def _lacks_memory(error: BaseException) -> bool:
    """Torch has a class for accelerators only; on the CPU it raises a RuntimeError."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(sign in str(error) for sign in _NO_MEMORY)
    )
