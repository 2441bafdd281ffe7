"""The command ``isda networks``."""

from isda.cli.options import JsonFile

__all__ = ["networks"]


def networks(*, json: JsonFile = None) -> None:
    """Print parameters, multiply-adds and what ISDA adds to them, of every network beside the paper's.

    Args:
        json: also write the table to this file as JSON; "-" writes JSON to the standard output and no table.
    """
    from isda.cli.output import show
    from isda.cli.terminal import table_console
    from isda.paper.cost_table import cost_rows, record, tables

    rows = cost_rows()
    show([record(row) for row in rows], json, lambda: table_console().print(*tables(rows)))
