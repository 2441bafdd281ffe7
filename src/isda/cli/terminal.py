"""The console that tables are printed on."""

from rich.console import Console

__all__ = ["table_console"]


def table_console() -> Console:
    """A console as wide as the terminal; a pipe or file has no width, and 80 columns would break numbers over lines."""
    console = Console()
    return console if console.is_terminal else Console(width=140)
