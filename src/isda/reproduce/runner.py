"""Runs trainings: tuning on held-out data where the paper tunes, then every seed; reports progress.

Finished runs are reused. All runs that are ready are submitted together, so that parallel workers stay busy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from isda._utils.errors import expect_type
from isda.engine.comparison import Planner, run_folder_name, run_planned
from isda.engine.executors import Executor, PlannedRun, RunProblem, RunsFailed, Watcher
from isda.engine.loop import Saving
from isda.engine.run_folder import RunFolder
from isda.engine.run_records import SEARCH_FOLDER, run_folders
from isda.engine.settings import RunSettings
from isda.engine.task import find_task
from isda.engine.tuning.method_search import SearchState
from isda.engine.tuning.request import FINAL_FOLDER, SearchOptions, make_candidates
from isda.engine.tuning.search_space import Proposal
from isda.reproduce.experiment import Experiment, TableExperiment, with_dependencies
from isda.reproduce.training import Scale, Training, TrainingOutcome
from isda.reproduce.workload import MachineSpeed, Work

CHOOSING_SEED = 100
"""Of the runs on held-out data: another than those of the final runs."""


@dataclass(frozen=True, kw_only=True)
class ReproductionOptions:
    """What all trainings of a reproduction share."""

    scale: Scale
    seeds: Sequence[int]
    folder: Path
    data_root: Path | None = None
    device: str = "auto"
    saving: Saving = field(default_factory=Saving)
    workers: int | None = None


def run_trainings(
    trainings: Sequence[Training], making: ReproductionOptions, watcher: Watcher, pool: Executor
) -> dict[str, TrainingOutcome]:
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
    courses = {
        one.name: _TrainingProgress(one, making if one.name in asked_for else first)
        for one in with_dependencies(trainings)
    }
    while True:
        asked = [run for course in courses.values() for run in course.next(courses)]
        if not asked:
            return {name: course.outcome() for name, course in courses.items()}
        planned = {one.folder: one for one in asked}
        problems = _problems(list(planned.values()), watcher, pool)
        for course in courses.values():
            course.absorb(problems)


def _problems(planned: Sequence[PlannedRun], watcher: Watcher, pool: Executor) -> Mapping[Path, RunProblem]:
    try:
        run_planned(planned, watcher=watcher, executor=pool)
    except RunsFailed as failed:
        return failed.problems
    return {}


class _TrainingProgress:
    """How far one training has come."""

    def __init__(self, training: Training, making: ReproductionOptions) -> None:
        self.training, self.making = training, making
        self.folder = making.folder / training.name
        self.differences: tuple[str, ...] = ()
        self.problems: list[str] = []
        self.settings: RunSettings | None = None
        self.choosing: SearchState | None = None
        self.trying: list[tuple[Proposal, list[PlannedRun]]] = []
        self.final: list[PlannedRun] = []
        self.ended = False

    def next(self, others: Mapping[str, _TrainingProgress]) -> list[PlannedRun]:
        """The runs to make next; none if it has ended, or waits for others."""
        needs = {key: others[need.name] for key, need in self.training.needs.items()}
        if self.ended or any(not need.ended for need in needs.values()):
            return []
        try:
            if self.settings is None:
                self._begin({key: need.first_folder() for key, need in needs.items()})
            if self.choosing is not None:
                self.trying = [
                    (asked, self.choosing.candidate.runs(asked.point, self.folder)) for asked in self.choosing.propose()
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

    def absorb(self, problems: Mapping[Path, RunProblem]) -> None:
        """Note what became of the runs that were asked for."""
        for asked, runs in self.trying:
            broken = [problems[run.folder] for run in runs if run.folder in problems]
            if any(not problem.diverged for problem in broken):
                self._fail("; ".join(problem.sentence for problem in broken))
            elif self.choosing is not None:
                self.choosing.add(asked, runs, problems)
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

    def outcome(self) -> TrainingOutcome:
        """What became of it."""
        record = self.choosing.record() if self.choosing is not None else None
        return TrainingOutcome(
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
            how = SearchOptions(trials=making.scale.trials, widen=0, seeds=(CHOOSING_SEED,))
            self.choosing = SearchState(make_candidates(settings, [training.method], (), how, planner)[0])
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

    def _final(self, seed: int) -> PlannedRun:
        folder = self.folder / FINAL_FOLDER
        if self.choosing is None:
            settings = expect_type(self.settings, RunSettings)
            return self._planner().plan(
                replace(settings, seed=seed), folder / run_folder_name(self.training.method, seed)
            )
        point = self.choosing.record().chosen
        if point is None:
            raise ValueError(f"no trial of {self.training.method} came to its end: all diverged")
        return self.choosing.candidate.final_run(point, seed, folder)

    def _keeping(self, run: PlannedRun) -> PlannedRun:
        """The run with the checkpoints that an analysis wants to see, over all of it."""
        wanted = self.training.checkpoints
        if not wanted:
            return run
        steps = max(1, run.config.total_steps // wanted)
        return replace(run, saving=Saving(self.making.saving.minutes, steps, wanted + 1))

    def _fail(self, sentence: str) -> None:
        self.problems.append(sentence)
        self.ended, self.final = True, []


def _check(planned: PlannedRun) -> None:
    """A folder that holds another run must not keep the other trainings from being made."""
    run = RunFolder(planned.folder)
    if run.started:
        run.check_resumable(planned.config)


TRIED = 5
"""Values of the grids that the paper chooses from."""


@dataclass(frozen=True, kw_only=True)
class ExperimentProgress:
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

    def seconds(self, speed: MachineSpeed) -> float:
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


def experiment_progress(
    experiment: Experiment, scale: Scale, seeds: int, folder: Path, root: Path | None
) -> ExperimentProgress:
    """Look at the folders of an experiment's trainings; no data set is read."""
    asked_for = {one.name for one in experiment.trainings()}
    trainings = with_dependencies(experiment.trainings())
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
    return ExperimentProgress(
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
