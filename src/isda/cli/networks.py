"""The command ``isda networks``."""

from isda.cli.options import JsonFile

__all__ = ["networks"]


def networks(
    *,
    only: tuple[str, ...] = (),
    measure: bool = False,
    steps: int = 5,
    batch_size: int | None = None,
    device: str = "auto",
    json: JsonFile = None,
) -> None:
    """Print parameters, multiply-adds and what ISDA adds to them, of every network beside the paper's.

    Args:
        only: names of networks; all by default.
        measure: also measure how much longer a training step takes with ISDA. Large networks take minutes without an
            accelerator.
        steps: turns of steps with and without ISDA, whose median counts, with --measure.
        batch_size: instead of the paper's, with --measure.
        device: auto, cpu, cuda or cuda:1, with --measure.
        json: also write the table to this file as JSON; "-" writes JSON to the standard output and no table.
    """
    from isda.choices import check_choice
    from isda.cli.output import show
    from isda.cli.terminal import table_console, tracked
    from isda.engine.processes import join_processes
    from isda.paper.cost_table import cost_rows, record, tables
    from isda.paper.timing import with_times

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
            rows = list(tracked(timed, "networks", len(rows)))
    show([record(row) for row in rows], json, lambda: table_console().print(*tables(rows)))
