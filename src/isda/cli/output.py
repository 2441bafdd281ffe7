"""What commands print: tables for people, JSON for programs, one way for all."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from isda.engine.folder.seal import json_text
from isda.files import write_text

__all__ = ["show"]


def show(record: Any, destination: str | None, tables: Callable[[], None]) -> None:
    """Print tables, or JSON where it is asked for.

    Args:
        record: what the tables hold, as plain values.
        destination: None for tables only; "-" for JSON on the standard output and nothing else; else a file that gets
            the JSON beside the tables. Its folder is made.
        tables: prints them.
    """
    text = json_text(record, indent=2) + "\n"
    if destination == "-":
        sys.stdout.write(text)
        return
    tables()
    if destination is not None:
        write_text(Path(destination), text)
