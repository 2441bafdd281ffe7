"""What a user says about where runs are made, and the pool that it asks for."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

from isda.choices import check_choice
from isda.engine.places.pool import Pool

__all__ = ["PASSED_ON", "PLACES", "Request", "Spread", "open_pool"]

PLACES = ("local", "ray", "slurm")
"""Each is a file beside this one, with `open_pool(request)` and the options of `Spread` that it TAKES."""
PASSED_ON = ("ISDA_DATA", "PYTHONPATH")
"""Variables that runs find on another machine as here: where data is, and code of the user's own."""
_OF_PLACES = {"cpus_per_run": None, "gpus_per_run": None, "sbatch": ()}
"""Options that not every place takes, and what they are where nobody gives them."""
_MOST = {"jobs": 10_000, "processes_per_run": 1024, "cpus_per_run": 10_000}
"""The largest value of each number."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Where runs are made, and how many at a time."""

    on: str = "local"
    """local: processes of this machine; ray: the cluster at RAY_ADDRESS, or else one that is started here; ray:ADDRESS:
    that cluster; slurm: write an array job and say how to submit it (docs/scale.md)."""
    jobs: int | None = None
    """Runs at the same time, which share the threads; 1 if left out, on a cluster as many as it has room for."""
    processes_per_run: int = 1
    """Processes that train each run together, started by torchrun."""
    cpus_per_run: int | None = None
    """CPUs that each run takes of a cluster; one per process if left out."""
    gpus_per_run: float | None = None
    """GPUs that each run takes of a cluster. If left out: on Ray one per process, where there are GPUs and --device is
    auto or cuda; on Slurm none."""
    sbatch: tuple[str, ...] = ()
    """Options of sbatch for --on slurm, without dashes: partition=gpu time=8:00:00."""

    def check(self) -> None:
        """Raise a ValueError if a number cannot be."""
        for name, most in _MOST.items():
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
            if value is not None and value > most:
                raise ValueError(f"{name} must be at most {most}, got {value}")
        if self.gpus_per_run is not None and not 0 <= self.gpus_per_run < float("inf"):
            raise ValueError(f"gpus_per_run must be 0 or more, got {self.gpus_per_run}")


@dataclass(frozen=True, kw_only=True)
class Request:
    """A pool that is wanted."""

    spread: Spread
    folder: Path
    """Of all runs, for what a place has to write down."""
    command: Sequence[str] = field(default_factory=tuple)
    """The words that make the table when all runs are there."""
    threads: int | None = None
    """CPU threads of each run, where the user has a wish."""
    most: int | None = None
    """How many runs there will be, where that is known."""

    @property
    def address(self) -> str:
        """What follows the colon of --on."""
        return self.spread.on.partition(":")[2]

    @property
    def jobs(self) -> int:
        """Runs at the same time on this machine."""
        jobs = 1 if self.spread.jobs is None else self.spread.jobs
        return jobs if self.most is None else max(1, min(jobs, self.most))


def open_pool(request: Request) -> AbstractContextManager[Pool]:
    """The pool of a request; nothing is started before it is given runs.

    Raises:
        ValueError: there is no such place, it lacks something here, or it does not take an option that was given.
    """
    spread = request.spread
    spread.check()
    name, colon, address = spread.on.partition(":")
    place = import_module(f"isda.engine.places.{check_choice('on', name, PLACES)}")
    if colon and not (address and "address" in place.TAKES):
        raise ValueError(f"on must be one of {', '.join(PLACES)} or ray:ADDRESS, got {spread.on!r}")
    for option, left_out in _OF_PLACES.items():
        if getattr(spread, option) != left_out and option not in place.TAKES:
            raise ValueError(f"{option} must be left out with --on {name}, got {getattr(spread, option)}")
    pool: AbstractContextManager[Pool] = place.open_pool(request)
    return pool
