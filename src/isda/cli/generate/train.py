"""The command ``isda generate train``."""

from pathlib import Path

import tyro

from isda.cli.machine import Machine
from isda.cli.train import train_run
from isda.generative.settings import Settings
from isda.generative.task import Generation

__all__ = ["train"]


def train(
    settings: tyro.conf.OmitArgPrefixes[Settings],
    machine: tyro.conf.OmitArgPrefixes[Machine],
    *,
    out: Path | None = None,
    resume: bool = False,
    hook: tuple[str, ...] = (),
) -> None:
    """Train a generator of images of each class and write a run folder.

    ``isda generate train --data digits --method acgan --width 0.25 --epochs 300``
    ``isda generate train --out runs/mine --resume`` goes on with a run that was interrupted, with its own settings.
    ``torchrun --nproc-per-node 4 -m isda generate train ...`` trains with four processes.

    Args:
        settings: what to learn.
        machine: where.
        out: the run folder; by default runs/DATA-NETWORK-METHOD-seedN.
        resume: go on with the run in the folder, or start it if there is none.
        hook: package.module:Class of further loggers, see isda.engine.Hook.
    """
    train_run(Generation(), settings, machine, out, resume, hook)
