"""Runs trainings: tuning on held-out data where the paper tunes, then every seed; reports progress.

Finished runs are reused. All runs that are ready are submitted together, so that parallel workers stay busy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from isda.lab.choices import expect_type
from isda.lab.engine.comparison import Planner, run_folder_name, run_planned
from isda.lab.engine.executors.runs import Execution, PlannedRun, RunProblem, RunsFailed, Watcher
from isda.lab.engine.run_folder import RunFolder
from isda.lab.engine.run_records import SEARCH_FOLDER, run_folders
from isda.lab.engine.search import (
    FINAL_FOLDER,
    Candidate,
    MethodSearchRecord,
    SearchOptions,
    Trial,
    apply_point,
    make_candidates,
    value_text,
)
from isda.lab.engine.settings import RunSettings, Saving
from isda.lab.engine.task import find_task
from isda.lab.reproduce.experiment import Experiment, TableExperiment, with_dependencies
from isda.lab.reproduce.training import Scale, Training, TrainingOutcome
from isda.lab.reproduce.workload import MachineSpeed, Work

SEARCH_SEED = 100
"""Of the runs on held-out data; final runs have other seeds."""
NO_MINUTES = 1e9
"""Between checkpoints of runs that keep those of the whole training: others would replace them."""


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
    trainings: Sequence[Training], options: ReproductionOptions, watcher: Watcher, pool: Execution
) -> dict[str, TrainingOutcome]:
    """Run what is missing of all trainings and their dependencies; return the outcomes by name.

    A training that fails does not stop the others. Dependencies that were not requested run with the first seed only.

    Raises:
        Stopped: SIGTERM or Ctrl-C; current runs have saved a checkpoint.
    """
    requested = {training.name for training in trainings}
    first_seed = replace(options, seeds=options.seeds[:1])
    progress = {
        training.name: _TrainingProgress(training, options if training.name in requested else first_seed)
        for training in with_dependencies(trainings)
    }
    while True:
        ready = {run.folder: run for training in progress.values() for run in training.next(progress)}
        if not ready:
            return {name: training.outcome() for name, training in progress.items()}
        problems: Mapping[Path, RunProblem] = {}
        try:
            run_planned(list(ready.values()), watcher=watcher, execution=pool)
        except RunsFailed as failed:
            problems = failed.problems
        for training in progress.values():
            training.absorb(problems)


class _TrainingProgress:
    """The state of one training: its search on held-out data, if it is tuned, then its final runs.

    `run_search` is not used because it stops at the first run that fails and knows no dependencies and no final runs
    of other trainings to execute at the same time.
    """

    def __init__(self, training: Training, options: ReproductionOptions) -> None:
        self.training, self.options = training, options
        self.folder = options.folder / training.folder_name(options.scale)
        self.differences: tuple[str, ...] = ()
        self.problems: list[str] = []
        self.settings: RunSettings | None = None
        self.inherited = ""
        self.search: Candidate | None = None
        self.trials: list[Trial] = []
        self.final: list[PlannedRun] = []
        self.ended = False

    def next(self, others: Mapping[str, _TrainingProgress]) -> list[PlannedRun]:
        """The runs to execute next; none if it has ended or waits for a dependency."""
        if self.ended or any(not others[training.name].ended for training in self.training.required):
            return []
        try:
            if self.settings is None:
                self._start(others)
            if self.search is not None and not self.trials:
                return self._trial_runs(self.search)
            self.final = [self._final_run(seed) for seed in self.options.seeds]
            for run in self.final:
                if RunFolder(run.folder).started:
                    RunFolder(run.folder).check_resumable(run.config)
        except (ValueError, OSError) as error:
            self._fail(str(error))
            return []
        return self.final

    def absorb(self, problems: Mapping[Path, RunProblem]) -> None:
        """Record the results of the runs that `next` returned."""
        if self.search is not None and not self.trials and not self.ended:
            failed = [problems[run.folder] for run in self._trial_runs(self.search) if run.folder in problems]
            if any(not problem.diverged for problem in failed):
                self._fail("; ".join(problem.sentence for problem in failed))
            else:
                points = range(len(self.search.points))
                self.trials = [self.search.trial(number, self.folder, problems) for number in points]
        if self.final:
            lost = [run for run in self.final if run.folder in problems]
            self.problems += [f"seed {run.config.seed}: {problems[run.folder].sentence}" for run in lost]
            self.ended = True

    def first_folder(self) -> Path:
        """The run folder of the first seed, which dependent trainings use."""
        folder = next((run.folder for run in self.final), None)
        if folder is None or not RunFolder(folder).finished:
            raise ValueError(f"it depends on {self.training.name}, which failed")
        return folder

    def outcome(self) -> TrainingOutcome:
        """The result of the training."""
        record = self._record()
        return TrainingOutcome(
            self.training,
            {run.config.seed: run.folder for run in self.final if RunFolder(run.folder).finished},
            self.differences,
            "; ".join(filter(None, [record.chosen_method if record else self._inherited_method(), self.inherited])),
            record.notes if record else (),
            tuple(self.problems),
        )

    def with_choice(self, settings: RunSettings) -> tuple[RunSettings, str]:
        """The settings of another training with what was chosen for this one, and those of the run in words."""
        record = self._record()
        point = None if record is None else record.chosen
        if self.search is None or point is None:
            raise ValueError(f"it takes the options that are chosen for {self.training.name}, which failed")
        searched = self.search.searched
        of_run = ", ".join(f"{one.name}={value_text(point[one.name])}" for one in searched if not one.of_method)
        words = f"{of_run} as chosen for {self.training.method}" if of_run else ""
        return apply_point(settings, searched, point)[0], words

    def _record(self) -> MethodSearchRecord | None:
        return None if self.search is None else self.search.record(self.trials)

    def _trial_runs(self, search: Candidate) -> list[PlannedRun]:
        return [run for point in search.points for run in search.runs(point, self.folder)]

    def _inherited_method(self) -> str:
        """The method with the options of another training, if it takes any."""
        return "" if self.training.chosen_from is None or self.settings is None else str(self.settings.method)

    def _start(self, others: Mapping[str, _TrainingProgress]) -> None:
        options, training = self.options, self.training
        scaled = training.at(options.scale, options.data_root)
        self.differences = scaled.differences
        folders = {key: others[needed.name].first_folder() for key, needed in training.dependencies.items()}
        settings = training.with_folders(scaled.settings, folders)
        if training.chosen_from is not None:
            settings, self.inherited = others[training.chosen_from.name].with_choice(settings)
        self.settings = settings
        planner = self._planner()
        if training.tuned:
            how = SearchOptions(trials=options.scale.trials, seeds=(SEARCH_SEED,))
            (self.search,) = make_candidates(settings, [str(settings.method)], training.search, how, planner)
        else:
            planner.resolve(replace(settings, seed=options.seeds[0]))

    def _planner(self) -> Planner:
        options, task = self.options, find_task(self.training.task)
        return Planner(
            task_of=lambda _: task,
            data_root=options.data_root,
            device=options.device,
            saving=options.saving,
            workers=options.workers,
        )

    def _final_run(self, seed: int) -> PlannedRun:
        folder = self.folder / FINAL_FOLDER
        if self.search is None:
            settings = replace(expect_type(self.settings, RunSettings), seed=seed)
            run = self._planner().plan(settings, folder / run_folder_name(str(settings.method), seed))
        else:
            point = self.search.record(self.trials).chosen
            if point is None:
                raise ValueError(f"all trials of {self.training.method} diverged")
            run = self.search.final_run(point, seed, folder)
        kept = self.training.checkpoints if seed == self.options.seeds[0] else 0
        if not kept:
            return run
        steps = max(1, run.config.total_steps // kept)
        return replace(run, saving=Saving(NO_MINUTES, steps, kept + 1))

    def _fail(self, message: str) -> None:
        self.problems.append(message)
        self.ended, self.final = True, []


@dataclass(frozen=True, kw_only=True)
class ExperimentProgress:
    """Finished and missing runs of an experiment at a scale."""

    name: str
    title: str
    cells: int
    """Cells that trainings fill; for a figure, its trainings."""
    cells_done: int
    runs: int
    runs_done: int
    works: tuple[Work, ...]
    """Of the missing runs of each training."""

    def seconds(self, speed: MachineSpeed) -> float:
        """Estimated time of the missing runs."""
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
    """Count the finished runs of an experiment's trainings; no data set is read."""
    requested = {training.name for training in experiment.trainings()}
    complete: dict[str, bool] = {}
    done, missing_runs, works = 0, 0, []
    for training in with_dependencies(experiment.trainings()):
        final_runs = seeds if training.name in requested else 1  # dependencies run with one seed
        trials = training.trials(scale)
        runs = folder / training.folder_name(scale)
        final_done, trials_done = _finished(runs / FINAL_FOLDER), _finished(runs / SEARCH_FOLDER)
        complete[training.name] = final_done >= final_runs
        # The search has ended if there is a final run.
        missing = max(0, final_runs - final_done) + (0 if final_done else max(0, trials - trials_done))
        missing_runs += missing
        done += min(final_done, final_runs) + min(trials_done, trials)
        if missing:
            works.append(training.work(scale, root).times(missing))
    names = list(complete)
    if isinstance(experiment, TableExperiment):
        names = [cell.training.name for cell in experiment.cells()]
    return ExperimentProgress(
        name=experiment.name,
        title=experiment.title,
        cells=len(names),
        cells_done=sum(complete[name] for name in names),
        runs=done + missing_runs,
        runs_done=done,
        works=tuple(works),
    )


def duration(seconds: float) -> str:
    """A readable duration.

    Example:
        >>> [duration(seconds) for seconds in (30, 600, 7200, 1e6, 1e9)]
        ['30 s', '10 min', '2.0 h', '11.6 days', '31.7 years']
    """
    for unit, length, digits in (("years", 31_557_600, 1), ("days", 86_400, 1), ("h", 3600, 1), ("min", 60, 0)):
        if seconds >= 2 * length or (unit == "days" and seconds >= 1.5 * length):
            return f"{seconds / length:,.{digits}f} {unit}"
    return f"{seconds:.0f} s"


def _finished(folder: Path) -> int:
    return sum(RunFolder(run).finished for run in run_folders(folder)) if folder.is_dir() else 0
