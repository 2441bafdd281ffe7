"""The command ``isda detect compare``."""

from pathlib import Path

import tyro

from isda.cli.compare import compare_runs
from isda.cli.machine import Machine
from isda.cli.options import JsonFile
from isda.cli.tasks import Asked
from isda.detection.settings import Settings
from isda.engine.places.spread import Spread
from isda.engine.registry import find_task

__all__ = ["compare"]


def compare(
    settings: tyro.conf.OmitArgPrefixes[Settings],
    machine: tyro.conf.OmitArgPrefixes[Machine],
    spread: tyro.conf.OmitArgPrefixes[Spread],
    *,
    methods: tuple[str, ...],
    seeds: int = 3,
    out: Path | None = None,
    report: Path | None = None,
    json: JsonFile = None,
) -> None:
    """Train a detector from several backbones with several seeds, and compare their box AP.

    ``isda detect compare --data coco --methods multi-task:backbone=runs/ce multi-task:backbone=runs/isda``

    For one seed all runs see the same batches and mirroring, detectors on one network start with the same heads, and
    differences are taken seed by seed.
    Runs that are there already are not repeated, those that were interrupted go on.

    Args:
        settings: what all runs share.
        machine: where.
        spread: where the runs are made.
        methods: what to compare, each as in --method; differences are to the first.
        seeds: number of paired runs of each method, at most 1000; their seeds count up from --seed.
        out: the folder for all runs; by default runs/compare-DATA.
        report: the HTML page; by default report.html in that folder.
        json: also write the table to this file as JSON; "-" writes JSON to the standard output and no table.
    """
    task = find_task("detection")
    compare_runs(Asked(task, (task,)), settings, machine, spread, methods, seeds, out, report, json)
