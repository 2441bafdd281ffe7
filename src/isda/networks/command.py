"""The command ``isda networks``."""

from typing import Annotated

import tyro

__all__ = ["networks"]


def networks(*, json: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None) -> None:
    """Print parameters, multiply-adds and ISDA's additional multiply-adds of every network beside the paper's.

    Args:
        json: also write the table to this file as JSON; "-" writes JSON to the standard output and no table.
    """
    from json import dumps
    from pathlib import Path

    from isda.files import write_text
    from isda.networks.table import cost_rows, record, tables
    from isda.terminal import table_console

    rows = cost_rows()
    text = dumps([record(row) for row in rows], indent=2)
    if json == "-":
        print(text)
        return
    console = table_console()
    for table in tables(rows):
        console.print(table)
    if json is not None:
        write_text(Path(json), text + "\n")
