"""The search: rounds of trials of all methods until no proposer has further trials.

All state is in the journal and the run folders, so a killed search is resumed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from isda.engine.comparison import run_planned
from isda.engine.executors import Executor, PlannedRun, RunProblem, RunsFailed, Watcher
from isda.engine.run_folder import RunFolder
from isda.engine.tuning.records import MethodSearchRecord, SearchRecord, TrialJournal, write_search
from isda.engine.tuning.request import Candidate
from isda.engine.tuning.search_space import Proposal, Trial, best_trial


@dataclass
class SearchState:
    """A candidate and its trials so far."""

    candidate: Candidate
    trials: list[Trial] = field(default_factory=list)

    def ask(self, level: int = 0) -> list[Proposal]:
        """What to try next, up to ``level`` trials where the search itself has ended."""
        return self.candidate.proposer().next(self.trials, level) if self.candidate.searched else []

    def absorb(self, proposal: Proposal, planned: Sequence[PlannedRun], problems: Mapping[Path, RunProblem]) -> Trial:
        """The trial that runs of a proposal were, now that they have ended; it is one of the trials from now on."""
        told = [f"seed {one.config.seed}: {problems[one.folder].sentence}" for one in planned if one.folder in problems]
        values = {}
        for one in planned if not told else ():
            values[str(one.config.seed)] = value = self.held_out_figure(one)
            if not math.isfinite(value):
                told.append(f"seed {one.config.seed}: {self.candidate.figure.title} is {value}")
        trial = Trial(
            number=len(self.trials),
            point=proposal.point,
            why=proposal.why,
            values={} if told else values,
            problem="; ".join(told),
        )
        self.trials.append(trial)
        return trial

    def held_out_figure(self, run: PlannedRun) -> float:
        """What a finished run is judged by; not a number if it does not have it."""
        value = RunFolder(run.folder).read_result().get(self.candidate.figure.name)
        return float(value) if isinstance(value, int | float) else math.nan

    def record(self) -> MethodSearchRecord:
        """What is known so far."""
        one = self.candidate
        chosen = best_trial(self.trials, one.figure.lower_is_better)
        notes = one.proposer().notes(self.trials) if one.searched else []
        return MethodSearchRecord(
            method=one.method,
            told=one.held_out.told,
            searched=one.searched,
            trials=tuple(self.trials),
            chosen=chosen.point if chosen else None,
            chosen_method=one.name(chosen.point) if chosen else "" if one.searched else one.method,
            notes=tuple(notes),
        )


def run_search(candidates: Sequence[Candidate], folder: Path, watcher: Watcher, pool: Executor) -> SearchRecord:
    """Make every run of the search that is not there yet, and say what is best.

    Args:
        candidates: the methods.
        folder: of the search, which this process holds.
        watcher: told how far things have come.
        pool: where they run.

    Raises:
        ValueError: a folder holds another run or a damaged one, or the store is damaged.
        RunsFailed: runs failed for another reason than a loss that is no number, after all others are done.
        Stopped: SIGTERM or Ctrl-C came; the runs at hand have saved a checkpoint.
    """
    store = TrialJournal(folder)
    courses = [SearchState(one) for one in candidates]
    for course in courses:
        course.trials += _stored_trials(course, store, folder)
    while True:
        write_search(_record(courses, finished=False), folder)
        # Methods whose own search has ended get as many trials as the longest search of another one.
        level = max(len(course.trials) for course in courses)
        asked = [(course, course.ask()) for course in courses]
        if not any(proposals for _, proposals in asked):
            asked = [(course, course.ask(level)) for course in courses]
        if not any(proposals for _, proposals in asked):
            break
        _run_round(asked, store, folder, lambda planned: _run_and_collect(planned, watcher, pool))
    done = _record(courses, finished=True)
    write_search(done, folder)
    return done


def _stored_trials(course: SearchState, store: TrialJournal, folder: Path) -> list[Trial]:
    """The trials of the store; a ValueError if the runs tell something else."""
    candidate = course.candidate
    if not candidate.searched:
        return []
    known = store.trials(candidate.study, candidate.figure.lower_is_better)
    for trial in known:
        for run in candidate.runs(trial.point, folder) if not trial.problem else ():
            seed = str(run.config.seed)
            if RunFolder(run.folder).finished and course.held_out_figure(run) != trial.values.get(seed):
                raise ValueError(
                    f"{store.path} has {trial.values.get(seed)} for {run.folder}, whose result is another; remove one "
                    "of them, and the same command goes on"
                )
    return known


def _run_round(
    asked: Sequence[tuple[SearchState, Sequence[Proposal]]],
    store: TrialJournal,
    folder: Path,
    run: Callable[[Sequence[PlannedRun]], dict[Path, RunProblem]],
) -> None:
    """One round: the runs of all proposals, then the trials that they are."""
    runs = [
        (course, proposal, course.candidate.runs(proposal.point, folder))
        for course, proposals in asked
        for proposal in proposals
    ]
    problems = run(list({one.folder: one for _, _, planned in runs for one in planned}.values()))
    for course, proposal, planned in runs:
        trial, candidate = course.absorb(proposal, planned, problems), course.candidate
        store.add(candidate.study, candidate.figure.lower_is_better, candidate.searched, trial)


def _run_and_collect(planned: Sequence[PlannedRun], watcher: Watcher, pool: Executor) -> dict[Path, RunProblem]:
    """Make runs; what happened to those that diverged."""
    try:
        run_planned(planned, watcher=watcher, pool=pool)
    except RunsFailed as failed:
        if not all(problem.diverged for problem in failed.problems.values()):
            raise
        return dict(failed.problems)
    return {}


def _record(courses: Sequence[SearchState], finished: bool) -> SearchRecord:
    first = courses[0].candidate
    config = first.config
    return SearchRecord(
        data=config.data,
        network=config.network,
        scale=config.scale,
        epochs=config.epochs,
        figure=first.figure,
        sampler=first.how.sampler,
        seeds=first.how.seeds,
        finished=finished,
        methods=tuple(course.record() for course in courses),
    )
