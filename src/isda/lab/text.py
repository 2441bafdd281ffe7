"""Text for terminals: escaped control characters and one-line warnings."""

from __future__ import annotations

import warnings


def escape_control_characters(text: str) -> str:
    r"""Text with its control characters, such as those of colours, escaped for a terminal.

    Example:
        >>> escape_control_characters("\x1b[31mred")
        '\\x1b[31mred'
    """
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def use_plain_warnings() -> None:
    """Show the warnings of this process as ``isda: warning: ...``, one line each."""
    warnings.formatwarning = _format_warning


def _format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    return f"isda: warning: {escape_control_characters(' '.join(str(message).split()))}\n"
