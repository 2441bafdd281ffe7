"""The command ``isda data``: which data sets there are, where they are looked for, and what they look like."""

from pathlib import Path

from isda.cli.options import JsonFile

__all__ = ["data"]


def data(
    name: str | None = None,
    /,
    *,
    data_root: Path | None = None,
    show: Path | None = None,
    json: JsonFile = None,
) -> None:
    """List the data sets and where each is looked for; with a name, load that one and describe it.

    Args:
        name: a data set to load, or a folder or .npz file.
        data_root: the folder of data sets; by default the environment's ISDA_DATA, else ./data.
        show: draw a contact sheet of the named data set into this image file.
        json: also write the table to this file as JSON; "-" writes JSON to the standard output and no table.
    """
    from rich.console import Console

    from isda.cli import output
    from isda.data.archives import data_root as find_root
    from isda.data.contact_sheet import write_contact_sheet
    from isda.data.loading import load
    from isda.data.table import data_set_row, data_set_rows, details, table
    from isda.plain_text import harmless

    if show is not None and name is None:
        raise ValueError("show needs the name of a data set, as in `isda data digits --show digits.png`")
    root = find_root(data_root)
    if name is None:
        rows = data_set_rows(root)
        after = "`isda data NAME` loads a set, or says exactly which files to put where."
    else:
        loaded = load(name, root)
        if show is not None:
            write_contact_sheet(loaded, show)
        rows = [data_set_row(loaded)]
        after = details(rows[0])

    def tables() -> None:
        console = Console()
        console.print(table(rows, root))
        console.print(harmless(after), highlight=False, markup=False)

    output.show({"root": str(root), "sets": rows}, json, tables)
