"""The command ``isda segment train``."""

from pathlib import Path

import tyro

from isda.cli.machine import Machine
from isda.cli.train import train_run
from isda.engine.registry import find_task
from isda.segmentation.settings import Settings

__all__ = ["train"]


def train(
    settings: tyro.conf.OmitArgPrefixes[Settings],
    machine: tyro.conf.OmitArgPrefixes[Machine],
    *,
    out: Path | None = None,
    resume: bool = False,
    hook: tuple[str, ...] = (),
) -> None:
    """Train a segmentation network and write a run folder.

    ``isda segment train --data camvid --network pspnet-resnet-18 --width 0.25 --crop 180 --epochs 20``
    ``isda segment train --out runs/mine --resume`` goes on with a run that was interrupted, with its own settings.
    ``torchrun --nproc-per-node 4 -m isda segment train ...`` trains with four processes.

    Args:
        settings: what to learn.
        machine: where.
        out: the run folder; by default runs/DATA-NETWORK-METHOD-seedN.
        resume: go on with the run in the folder, or start it if there is none.
        hook: package.module:Class of further loggers, see isda.engine.Hook.
    """
    train_run(find_task("segmentation"), settings, machine, out, resume, hook)
