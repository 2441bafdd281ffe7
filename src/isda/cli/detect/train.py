"""The command ``isda detect train``."""

from pathlib import Path

import tyro

from isda.cli.machine import Machine
from isda.cli.train import train_run
from isda.detection.settings import Settings
from isda.engine.registry import find_task

__all__ = ["train"]


def train(
    settings: tyro.conf.OmitArgPrefixes[Settings],
    machine: tyro.conf.OmitArgPrefixes[Machine],
    *,
    out: Path | None = None,
    resume: bool = False,
    hook: tuple[str, ...] = (),
) -> None:
    """Train a detector on a backbone and write a run folder.

    ``isda detect train --data coco --network mask-rcnn --backbone runs/imagenet-resnet-50-isda-seed0``
    ``isda detect train --out runs/mine --resume`` goes on with a run that was interrupted, with its own settings.
    ``torchrun --nproc-per-node 8 -m isda detect train ...`` trains with eight processes.

    Args:
        settings: what to learn.
        machine: where.
        out: the run folder; by default runs/DATA-NETWORK-METHOD-seedN.
        resume: go on with the run in the folder, or start it if there is none.
        hook: package.module:Class of further loggers, see isda.engine.Hook.
    """
    train_run(find_task("detection"), settings, machine, out, resume, hook)
