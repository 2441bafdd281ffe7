"""What is there and what is missing of an experiment, and how long the rest takes: `isda reproduce list`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from isda.engine.folder.reading import SEARCH_FOLDER, run_folders
from isda.engine.folder.run_folder import RunFolder
from isda.engine.tuning.retraining import FINAL_FOLDER
from isda.reproduce.experiment import Experiment, TableExperiment, with_needs
from isda.reproduce.scale import Scale
from isda.reproduce.training import Training
from isda.reproduce.work import Speed, Work

__all__ = ["Standing", "duration", "standing"]

TRIED = 5
"""Values of the grids that the paper chooses from."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How far an experiment has come at a scale."""

    name: str
    title: str
    cells: int
    """That trainings fill; for a figure, its trainings."""
    cells_done: int
    runs: int
    runs_done: int
    works: tuple[Work, ...]
    """Of the trainings whose runs are missing."""

    def seconds(self, speed: Speed) -> float:
        """How long these take."""
        return sum(work.seconds(speed) for work in self.works)

    def record(self) -> dict[str, Any]:
        """As plain values."""
        plain = asdict(self)
        del plain["works"]
        return plain | {
            "operations": sum(work.operations for work in self.works),
            "bytes": sum(work.bytes for work in self.works),
        }


def standing(experiment: Experiment, scale: Scale, seeds: int, folder: Path, root: Path | None) -> Standing:
    """Look at the folders of an experiment's trainings; no data set is read."""
    asked_for = {one.name for one in experiment.trainings()}
    trainings = with_needs(experiment.trainings())
    # What is only needed by others is made with one seed.
    wished = {one.name: seeds if one.name in asked_for else 1 for one in trainings}
    done = {one.name: _finished(folder / one.name / FINAL_FOLDER) for one in trainings}
    tried = {one.name: _finished(folder / one.name / SEARCH_FOLDER) for one in trainings}
    wanted = {one.name: _trials(one, scale) for one in trainings}
    # What is to be chosen has been where there is a final run.
    missing = {
        name: max(0, wished[name] - done[name]) + (0 if done[name] else max(0, wanted[name] - tried[name]))
        for name in done
    }
    names = list(done)
    if isinstance(experiment, TableExperiment):
        names = [cell.training.name for cell in experiment.cells()]
    return Standing(
        name=experiment.name,
        title=experiment.title,
        cells=len(names),
        cells_done=sum(done[name] >= wished[name] for name in names),
        runs=sum(min(done[name], wished[name]) + missing[name] + min(tried[name], wanted[name]) for name in done),
        runs_done=sum(min(done[name], wished[name]) + min(tried[name], wanted[name]) for name in done),
        works=tuple(one.work(scale, root).times(missing[one.name]) for one in trainings if missing[one.name]),
    )


def duration(seconds: float) -> str:
    """A time as a person would say it.

    Example:
        >>> [duration(seconds) for seconds in (30, 600, 7200, 1e6, 1e9)]
        ['30 s', '10 min', '2.0 h', '11.6 days', '31.7 years']
    """
    for unit, length, digits in (("years", 31_557_600, 1), ("days", 86_400, 1), ("h", 3600, 1), ("min", 60, 0)):
        if seconds >= 2 * length or (unit == "days" and seconds >= 1.5 * length):
            return f"{seconds / length:,.{digits}f} {unit}"
    return f"{seconds:.0f} s"


def _trials(training: Training, scale: Scale) -> int:
    return (scale.trials or TRIED) if training.tuned else 0


def _finished(folder: Path) -> int:
    found: Iterable[Path] = run_folders(folder) if folder.is_dir() else ()
    return sum(RunFolder(run).finished for run in found)
