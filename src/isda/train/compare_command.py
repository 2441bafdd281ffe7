"""The command ``isda compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from isda.train.machine import Machine
from isda.train.settings import Settings

__all__ = ["compare"]


def compare(
    settings: tyro.conf.OmitArgPrefixes[Settings],
    machine: tyro.conf.OmitArgPrefixes[Machine],
    *,
    methods: tuple[str, ...] = ("cross-entropy", "isda", "isda-tilted"),
    seeds: int = 5,
    jobs: int = 1,
    out: Path | None = None,
    report: Path | None = None,
    json: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None,
) -> None:
    """Train several methods with several seeds on one data set, and compare their errors.

    ``isda compare --data cifar10 --labels 4000 --scale small --methods cross-entropy isda:lambda_0=1 --seeds 5``

    For one seed all methods see the same images, initial weights, batches and augmentation, and differences are taken
    seed by seed. Runs that are there already are not repeated, those that were interrupted go on.

    Args:
        settings: what all runs share.
        machine: where.
        methods: what to compare, each as in --method; differences are to cross-entropy, or else to the first.
        seeds: number of paired runs of each method; their seeds count up from --seed.
        jobs: runs at the same time; they share the threads.
        out: the folder for all runs; by default runs/compare-DATA.
        report: the HTML page; by default report.html in that folder.
        json: also write the table to this file as JSON; "-" writes JSON to the standard output and no table.
    """
    import sys

    from isda.report.command import report as write_report
    from isda.train.compare_progress import watcher_for
    from isda.train.comparing import compare as run_all
    from isda.train.comparing import run_folder_name
    from isda.train.interruptions import Stopped

    machine.use_threads()
    if settings.method is not None:
        raise ValueError("compare takes --methods, not --method")
    if seeds < 1:
        raise ValueError(f"seeds must be at least 1, got {seeds}")
    first = settings.seed or 0
    folder = out or Path("runs") / f"compare-{Path(settings.data or 'digits').stem}"
    with watcher_for(sys.stderr.isatty()) as watcher:
        try:
            run_all(
                settings,
                methods,
                range(first, first + seeds),
                folder,
                jobs=jobs,
                data_root=machine.data_root,
                device=machine.device,
                saving=machine.saving(),
                watcher=watcher,
            )
        except Stopped as stopped:
            print(f"isda: {stopped}; the same command goes on", file=sys.stderr)
            return
    write_report(
        tuple(folder / run_folder_name(method, first).parent for method in methods),
        out=report or folder / "report.html",
        json=json,
    )
