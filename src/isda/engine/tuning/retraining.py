"""After the choice: runs on all data with it, paired by seed, judged by what no run of the search has seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from isda.engine.planned import Planned
from isda.engine.tuning.candidate import Candidate
from isda.engine.tuning.record import MethodSearch

__all__ = ["FINAL_FOLDER", "final_runs"]

FINAL_FOLDER = "final"
OF_METHODS = ("method", "method_options")
"""Fields of a configuration in which the methods of a comparison differ anyway."""


def final_runs(
    candidates: Sequence[Candidate], chosen: Sequence[MethodSearch], seeds: Sequence[int], folder: Path
) -> list[Planned]:
    """The final runs of the methods for which something could be chosen, or nothing had to be.

    Args:
        candidates: the methods.
        chosen: what the search says of each.
        seeds: of the runs.
        folder: of the search.
    """
    pairs = [
        (one, found.chosen or {})
        for one, found in zip(candidates, chosen, strict=True)
        if found.chosen is not None or not one.searched
    ]
    planned = [one.final_run(point, seed, folder / FINAL_FOLDER) for seed in seeds for one, point in pairs]
    # What a choice has changed beside the method's own options must not keep the runs apart in the comparison.
    without = [one.planner.resolve(replace(one.held_out.final, seed=seeds[0])) for one, _ in pairs]
    names = {
        name
        for plain, run in zip(without, planned, strict=False)
        for name in plain.differences(run.config)
        if name not in OF_METHODS
    }
    return [replace(run, config=replace(run.config, chosen=tuple(sorted(names)))) for run in planned]
