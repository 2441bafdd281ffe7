"""What a terminal shows: text from files and names of files made harmless, and warnings without lines of code."""

from __future__ import annotations

import warnings

__all__ = ["harmless", "use_plain_warnings"]


def harmless(text: str) -> str:
    r"""Text that does nothing to a terminal: control characters, such as those of colours, are spelt out.

    Example:
        >>> harmless("\x1b[31mred")
        '\\x1b[31mred'
    """
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def use_plain_warnings() -> None:
    """Show the warnings of this process as ``isda: warning: ...``, one line each."""
    warnings.formatwarning = _told


def _told(message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None) -> str:
    return f"isda: warning: {harmless(' '.join(str(message).split()))}\n"
