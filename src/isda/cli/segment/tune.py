"""The command ``isda segment tune``."""

import tyro

from isda.cli.machine import Machine
from isda.cli.tasks import Asked
from isda.cli.tune import Tuning, tune_runs
from isda.engine.places.spread import Spread
from isda.engine.registry import find_task
from isda.segmentation.settings import Settings

__all__ = ["tune"]


def tune(
    settings: tyro.conf.OmitArgPrefixes[Settings],
    machine: tyro.conf.OmitArgPrefixes[Machine],
    tuning: tyro.conf.OmitArgPrefixes[Tuning],
    spread: tyro.conf.OmitArgPrefixes[Spread],
) -> None:
    """Choose settings of methods on the validation part, then train with the choice and compare.

    ``isda segment tune --data camvid --width 0.25 --methods cross-entropy isda --seeds 3``

    The final runs are judged by the test part, where it has labels, and else by the validation part once more. Runs
    that are there already are not repeated, those that were interrupted go on: the same command makes the same choice.

    Args:
        settings: what all runs share.
        machine: where.
        tuning: what to choose, and how.
        spread: where the runs are made.
    """
    task = find_task("segmentation")
    tune_runs(Asked(task, (task,)), settings, machine, tuning, spread)
