"""Make trainings: choose what the paper chooses on held-out data, then every seed; nothing that is there is made again.

All runs that can be made at a time are made together, so that many workers have something to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from isda.engine.comparing import Planner, run_folder_name
from isda.engine.folder.run_folder import RunFolder
from isda.engine.many_runs import run_planned
from isda.engine.places.pool import Pool
from isda.engine.planned import Planned, Problem, RunsFailed, Watcher
from isda.engine.registry import find_task
from isda.engine.saving import Saving
from isda.engine.settings import RunSettings
from isda.engine.tuning.asked import candidates_of
from isda.engine.tuning.candidate import How
from isda.engine.tuning.course import Course
from isda.engine.tuning.retraining import FINAL_FOLDER
from isda.engine.tuning.trials import Proposal
from isda.errors import of_type
from isda.reproduce.experiment import with_needs
from isda.reproduce.outcome import Outcome
from isda.reproduce.scale import Scale
from isda.reproduce.training import Training

__all__ = ["Making", "make_trainings"]

CHOOSING_SEED = 100
"""Of the runs on held-out data: another than those of the final runs."""


@dataclass(frozen=True, kw_only=True)
class Making:
    """What all trainings of a reproduction share."""

    scale: Scale
    seeds: Sequence[int]
    folder: Path
    data_root: Path | None = None
    device: str = "auto"
    saving: Saving = field(default_factory=Saving)
    workers: int | None = None


def make_trainings(trainings: Sequence[Training], making: Making, watcher: Watcher, pool: Pool) -> dict[str, Outcome]:
    """Make every run that is missing, and say what became of each training, by name.

    A training that fails does not keep the others from going on. What is only needed by others is made with the first
    seed alone.

    Args:
        trainings: those that are asked for.
        making: what they share.
        watcher: told how far things have come.
        pool: where they run.

    Raises:
        Stopped: SIGTERM or Ctrl-C came; the runs at hand have saved a checkpoint.
        HandedOver: the pool has left the runs that can be made now to somebody else.
    """
    asked_for = {one.name for one in trainings}
    first = replace(making, seeds=making.seeds[:1])
    courses = {one.name: _Course(one, making if one.name in asked_for else first) for one in with_needs(trainings)}
    while True:
        asked = [run for course in courses.values() for run in course.next(courses)]
        if not asked:
            return {name: course.outcome() for name, course in courses.items()}
        planned = {one.folder: one for one in asked}
        problems = _problems(list(planned.values()), watcher, pool)
        for course in courses.values():
            course.absorb(problems)


def _problems(planned: Sequence[Planned], watcher: Watcher, pool: Pool) -> Mapping[Path, Problem]:
    try:
        run_planned(planned, watcher=watcher, pool=pool)
    except RunsFailed as failed:
        return failed.problems
    return {}


class _Course:
    """How far one training has come."""

    def __init__(self, training: Training, making: Making) -> None:
        self.training, self.making = training, making
        self.folder = making.folder / training.name
        self.differences: tuple[str, ...] = ()
        self.problems: list[str] = []
        self.settings: RunSettings | None = None
        self.choosing: Course | None = None
        self.trying: list[tuple[Proposal, list[Planned]]] = []
        self.final: list[Planned] = []
        self.ended = False

    def next(self, others: Mapping[str, _Course]) -> list[Planned]:
        """The runs to make next; none if it has ended, or waits for others."""
        needs = {key: others[need.name] for key, need in self.training.needs.items()}
        if self.ended or any(not need.ended for need in needs.values()):
            return []
        try:
            if self.settings is None:
                self._begin({key: need.first_folder() for key, need in needs.items()})
            if self.choosing is not None:
                self.trying = [
                    (asked, self.choosing.candidate.runs(asked.point, self.folder)) for asked in self.choosing.ask()
                ]
                if self.trying:
                    return [run for _, runs in self.trying for run in runs]
            self.final = [self._keeping(self._final(seed)) for seed in self.making.seeds]
            for run in self.final:
                _check(run)
        except (ValueError, OSError) as error:
            self._fail(str(error))
            return []
        return self.final

    def absorb(self, problems: Mapping[Path, Problem]) -> None:
        """Note what became of the runs that were asked for."""
        for asked, runs in self.trying:
            broken = [problems[run.folder] for run in runs if run.folder in problems]
            if any(not problem.diverged for problem in broken):
                self._fail("; ".join(problem.sentence for problem in broken))
            elif self.choosing is not None:
                self.choosing.absorb(asked, runs, problems)
        self.trying = []
        if self.final:
            lost = [run for run in self.final if run.folder in problems]
            self.problems += [f"seed {run.config.seed}: {problems[run.folder].sentence}" for run in lost]
            self.ended = True

    def first_folder(self) -> Path:
        """The run folder of the first seed, which others build on."""
        folder = next((run.folder for run in self.final), None)
        if folder is None or not RunFolder(folder).finished:
            raise ValueError(f"it needs {self.training.name}, which failed")
        return folder

    def outcome(self) -> Outcome:
        """What became of it."""
        record = self.choosing.record() if self.choosing is not None else None
        return Outcome(
            self.training,
            {run.config.seed: run.folder for run in self.final if RunFolder(run.folder).finished},
            self.differences,
            record.chosen_method if record else "",
            record.notes if record else (),
            tuple(self.problems),
        )

    def _begin(self, folders: Mapping[str, Path]) -> None:
        making, training = self.making, self.training
        shrunk = training.at(making.scale, making.data_root)
        self.differences = shrunk.differences
        self.settings = settings = training.with_folders(shrunk.settings, folders)
        planner = self._planner()
        if training.tuned:
            how = How(trials=making.scale.trials, widen=0, seeds=(CHOOSING_SEED,))
            self.choosing = Course(candidates_of(settings, [training.method], (), how, planner)[0])
        else:
            planner.resolve(replace(settings, seed=making.seeds[0]))

    def _planner(self) -> Planner:
        making, task = self.making, find_task(self.training.task)
        return Planner(
            task_of=lambda _: task,
            data_root=making.data_root,
            device=making.device,
            saving=making.saving,
            workers=making.workers,
        )

    def _final(self, seed: int) -> Planned:
        folder = self.folder / FINAL_FOLDER
        if self.choosing is None:
            settings = of_type(self.settings, RunSettings)
            return self._planner().plan(
                replace(settings, seed=seed), folder / run_folder_name(self.training.method, seed)
            )
        point = self.choosing.record().chosen
        if point is None:
            raise ValueError(f"no trial of {self.training.method} came to its end: all diverged")
        return self.choosing.candidate.final_run(point, seed, folder)

    def _keeping(self, run: Planned) -> Planned:
        """The run with the checkpoints that an analysis wants to see, over all of it."""
        wanted = self.training.checkpoints
        if not wanted:
            return run
        steps = max(1, run.config.total_steps // wanted)
        return replace(run, saving=Saving(self.making.saving.minutes, steps, wanted + 1))

    def _fail(self, sentence: str) -> None:
        self.problems.append(sentence)
        self.ended, self.final = True, []


def _check(planned: Planned) -> None:
    """A folder that holds another run must not keep the other trainings from being made."""
    run = RunFolder(planned.folder)
    if run.started:
        run.check_resumable(planned.config)
