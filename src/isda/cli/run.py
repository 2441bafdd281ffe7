"""The command ``isda run``."""

import json
import os
import sys
from pathlib import Path

import tyro

from isda.engine.interruptions import Stopped
from isda.engine.places.plan import read_planned
from isda.engine.run_one import make_run, problem_of
from isda.errors import is_ours
from isda.files import write_text
from isda.plain_text import harmless

__all__ = ["run"]


def run(
    plan: tyro.conf.Positional[Path],
    number: tyro.conf.Positional[int],
    *,
    own: tuple[str, ...] = (),
    problem: Path | None = None,
) -> None:
    """Make one run of a plan that --on slurm has written: what each element of its array job does.

    ``isda run runs/compare-digits/slurm/1f3a5c7e.json 0``

    A run that was interrupted goes on, one that is finished stays as it is.

    Args:
        plan: the file.
        number: of the run, from 0.
        own: code of your own that the run uses; it is imported only if it is named here.
        problem: also write what went wrong to this file, as JSON: a sentence, and whether the loss was not a number.
    """
    import torch

    one, threads = read_planned(plan, number, own)
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        make_run(one)
    except Stopped as stopped:
        print(f"isda: {stopped}; the same command goes on", file=sys.stderr)
        sys.exit(stopped.status)
    except Exception as error:
        told = problem_of(error)
        if problem is not None and os.environ.get("RANK", "0") == "0":
            write_text(problem, json.dumps(told))
        if not is_ours(error):
            raise
        raise ValueError(f"{one.folder}: {told.sentence}") from error
    if os.environ.get("RANK", "0") == "0":
        print(harmless(f"{one.folder} is finished"))
