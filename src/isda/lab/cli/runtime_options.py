"""Options that commands share: device, data folder, threads, checkpoints, ``--json``."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from isda.lab.choices import check_range
from isda.lab.engine.settings import Saving

JSON_HELP = 'also write the result to this file as JSON; "-" writes JSON to the standard output and nothing else.'
JsonFile = Annotated[str | None, tyro.conf.arg(metavar="FILE", help=JSON_HELP)]
"""``--json FILE``; see `isda.lab.cli.output.show`."""
DataRoot = Annotated[
    Path | None,
    tyro.conf.arg(help="the folder of data sets; by default the environment variable ISDA_DATA, else ./data."),
]
Device = Annotated[str, tyro.conf.arg(help="auto, cpu, cuda or cuda:1.")]

MAX_THREADS = 1024


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Options of commands that load data."""

    data_root: DataRoot = None
    skip_unreadable: bool = False
    """Leave out images of a folder that cannot be decoded, instead of refusing it with a list of them."""
    device: Device = "auto"

    def __post_init__(self) -> None:
        if self.skip_unreadable:
            from isda.lab.data.catalogue import SKIP_VARIABLE

            os.environ[SKIP_VARIABLE] = "1"


@dataclass(frozen=True, kw_only=True)
class MeasureOptions(DataOptions):
    """Options of commands that measure a trained network."""

    json: JsonFile = None


@dataclass(frozen=True, kw_only=True)
class RuntimeOptions(DataOptions):
    """Options of commands that train."""

    workers: int | None = None
    """Threads that decode and augment images ahead, where they are files."""
    threads: int | None = None
    """CPU threads."""
    checkpoint_minutes: float = 5.0
    """Write a checkpoint when this much time has passed since the last."""
    checkpoint_steps: int | None = None
    """Write a checkpoint every so many steps as well."""
    keep: int = 2
    """How many checkpoints to keep."""

    def saving(self) -> Saving:
        """When to write checkpoints."""
        return Saving(self.checkpoint_minutes, self.checkpoint_steps, self.keep)

    def set_threads(self) -> None:
        """Set the number of torch's threads if it is given."""
        import torch

        for name in ("workers", "threads"):
            if (value := getattr(self, name)) is not None:
                check_range(name, value, 1, MAX_THREADS)
        if self.threads is not None:
            torch.set_num_threads(self.threads)


def check_image_files(images: Sequence[Path], distinct_names: bool = False) -> None:
    """Raise an error unless there are images, whose file names differ where output files are named by them."""
    if not images:
        raise ValueError("images must name at least one image file, got none")
    name, count = Counter(path.stem for path in images).most_common(1)[0]
    if distinct_names and count > 1:
        raise ValueError(f"images must have different file names, got {name!r} {count} times")
    for path in images:
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist")
