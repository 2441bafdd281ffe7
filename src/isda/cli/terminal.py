"""The console that tables are printed on."""

from rich.console import Console

__all__ = ["table_console"]


def table_console(least: int = 0) -> Console:
    """A console as wide as the terminal; a pipe or file has no width, and 80 columns would break numbers over lines.

    Args:
        least: columns that a table needs for its numbers; a narrower terminal breaks its lines, and hides nothing.
    """
    console = Console()
    if not console.is_terminal:
        return Console(width=140)
    return console if console.width >= least else Console(width=least)
