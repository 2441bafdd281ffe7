"""The commands ``isda networks`` and ``isda data``."""

from pathlib import Path

from isda.lab.cli.runtime_options import DataRoot, JsonFile


def networks(
    *,
    only: tuple[str, ...] = (),
    paper: bool = False,
    measure: bool = False,
    steps: int = 5,
    batch_size: int | None = None,
    device: str = "auto",
    json: JsonFile = None,
) -> None:
    """List the networks with image size and parameters, or their costs beside the paper's.

    Args:
        only: names of networks; all by default.
        paper: show parameters, multiply-adds and ISDA's overhead beside the numbers that the paper prints.
        measure: as --paper, and measure how much longer a training step takes with ISDA. Large networks take minutes
            without an accelerator.
        steps: pairs of steps with and without ISDA, of which the median is reported, with --measure.
        batch_size: instead of the paper's, with --measure.
        device: auto, cpu, cuda or cuda:1, with --measure.
        json: a file for the result as JSON.
    """
    from isda.lab.choices import check_choice
    from isda.lab.cli.output import plain_table, show, table_console, track_progress
    from isda.lab.engine.processes import join_processes
    from isda.lab.reproduce.costs import (
        CIFAR_CLASSES,
        IMAGENET_CLASSES,
        cost_record,
        cost_rows,
        cost_tables,
        with_times,
    )

    known = [row.name for row in cost_rows()]
    for name in only:
        check_choice("network", name, known)
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    if batch_size is not None and batch_size < 2:
        raise ValueError(f"batch_size must be at least 2, got {batch_size}")
    rows = [row for row in cost_rows() if not only or row.name in only]
    if measure:
        with join_processes(device) as processes:
            timed = (with_times(row, processes.device, steps, batch_size) for row in rows)
            rows = list(track_progress(timed, "networks", len(rows)))

    def tables() -> None:
        console = table_console()
        if paper or measure:
            console.print(*cost_tables(rows))
            return
        cells = [
            [
                row.name,
                "x".join(map(str, row.input_shape[1:])),
                f"{row.cells['parameters'].ours / 1e6:.2f}M",
                f"{row.cells['multiply_adds'].ours / 1e6:,.0f}M",
                str(row.feature_dim),
            ]
            for row in rows
        ]
        caption = (
            f"Counted with {CIFAR_CLASSES} classes for small images and {IMAGENET_CLASSES} for large ones. "
            "timm:NAME is any model of timm. `isda networks --paper` has ISDA's overhead, beside the paper's."
        )
        heads = ["network", "images", "parameters", "multiply-adds", "features"]
        console.print(plain_table("Networks of isda train", heads, cells, caption))

    show([cost_record(row) for row in rows], json, tables)


def data(
    name: str | None = None,
    /,
    *,
    data_root: DataRoot = None,
    show: Path | None = None,
    json: JsonFile = None,
) -> None:
    """List the data sets and where they are searched; with a name, load and describe that set.

    Args:
        name: a data set to load, or a folder or .npz file.
        data_root: the folder of data sets.
        show: draw a contact sheet of the named data set into this image file.
        json: a file for the result as JSON.
    """
    from isda.lab.cli import output
    from isda.lab.cli.output import table_console
    from isda.lab.data.catalogue import data_root as find_root
    from isda.lab.data.catalogue import load
    from isda.lab.data.display import data_set_details, data_set_row, data_set_rows, data_set_table, write_contact_sheet
    from isda.lab.text import escape_control_characters

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
        after = data_set_details(rows[0])

    def tables() -> None:
        console = table_console(least=72)
        console.print(data_set_table(rows, root))
        console.print(escape_control_characters(after), highlight=False, markup=False)

    output.show({"root": str(root), "sets": rows}, json, tables)
