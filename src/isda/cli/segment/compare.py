"""The command ``isda segment compare``."""

from pathlib import Path

import tyro

from isda.cli.compare import compare_runs
from isda.cli.machine import Machine
from isda.cli.options import JsonFile
from isda.cli.tasks import Asked
from isda.engine.places.spread import Spread
from isda.engine.registry import find_task
from isda.segmentation.settings import Settings

__all__ = ["compare"]


def compare(
    settings: tyro.conf.OmitArgPrefixes[Settings],
    machine: tyro.conf.OmitArgPrefixes[Machine],
    spread: tyro.conf.OmitArgPrefixes[Spread],
    *,
    methods: tuple[str, ...] = ("cross-entropy", "isda"),
    seeds: int = 3,
    out: Path | None = None,
    report: Path | None = None,
    json: JsonFile = None,
) -> None:
    """Train several methods with several seeds on one data set, and compare their mIoU.

    ``isda segment compare --data camvid --width 0.25 --methods cross-entropy isda:lambda_0=5 isda:covariance=full``

    For one seed all methods see the same initial weights, batches and augmentation, and differences are taken seed by
    seed. Runs that are there already are not repeated, those that were interrupted go on.

    Args:
        settings: what all runs share.
        machine: where.
        spread: where the runs are made.
        methods: what to compare, each as in --method; differences are to cross-entropy, or else to the first.
        seeds: number of paired runs of each method, at most 1000; their seeds count up from --seed.
        out: the folder for all runs; by default runs/compare-DATA.
        report: the HTML page; by default report.html in that folder.
        json: also write the table to this file as JSON; "-" writes JSON to the standard output and no table.
    """
    task = find_task("segmentation")
    compare_runs(Asked(task, (task,)), settings, machine, spread, methods, seeds, out, report, json)
