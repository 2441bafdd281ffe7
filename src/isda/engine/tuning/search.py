"""The search itself: rounds of trials of all methods side by side, each an ordinary run, until nobody asks for more.

What was tried is in the store and in run folders: a search that was killed goes on as if it had not been.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from isda.engine.folder.run_folder import RunFolder
from isda.engine.many_runs import run_planned
from isda.engine.places.pool import Pool
from isda.engine.planned import Planned, Problem, RunsFailed, Watcher
from isda.engine.tuning.candidate import Candidate
from isda.engine.tuning.record import MethodSearch, Search, write_search
from isda.engine.tuning.store import Store
from isda.engine.tuning.trials import Proposal, Trial, best

__all__ = ["search"]


@dataclass
class _Course:
    """How far the search of one method has come."""

    candidate: Candidate
    trials: list[Trial] = field(default_factory=list)

    def ask(self, level: int) -> list[Proposal]:
        """What to try next."""
        return self.candidate.proposer().next(self.trials, level) if self.candidate.searched else []

    def record(self) -> MethodSearch:
        """What is known so far."""
        one = self.candidate
        chosen = best(self.trials, one.figure.lower_is_better)
        notes = one.proposer().notes(self.trials) if one.searched else []
        return MethodSearch(
            method=one.method,
            told=one.held_out.told,
            searched=one.searched,
            trials=tuple(self.trials),
            chosen=chosen.point if chosen else None,
            chosen_method=one.name(chosen.point) if chosen else "" if one.searched else one.method,
            notes=tuple(notes),
        )


def search(candidates: Sequence[Candidate], folder: Path, watcher: Watcher, pool: Pool) -> Search:
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
    store = Store(folder)
    courses = [_Course(one, _known(one, store, folder)) for one in candidates]
    while True:
        write_search(_record(courses, finished=False), folder)
        # Methods whose own search has ended get as many trials as the longest search of another one.
        level = max(len(course.trials) for course in courses)
        asked = [(course, course.ask(0)) for course in courses]
        if not any(proposals for _, proposals in asked):
            asked = [(course, course.ask(level)) for course in courses]
        if not any(proposals for _, proposals in asked):
            break
        _make(asked, store, folder, lambda planned: _problems(planned, watcher, pool))
    done = _record(courses, finished=True)
    write_search(done, folder)
    return done


def _known(candidate: Candidate, store: Store, folder: Path) -> list[Trial]:
    """The trials of the store; a ValueError if the runs tell something else."""
    if not candidate.searched:
        return []
    known = store.trials(candidate.study, candidate.figure.lower_is_better)
    for trial in known:
        for run in candidate.runs(trial.point, folder) if not trial.problem else ():
            seed = str(run.config.seed)
            if RunFolder(run.folder).finished and _figure(run, candidate) != trial.values.get(seed):
                raise ValueError(
                    f"{store.path} has {trial.values.get(seed)} for {run.folder}, whose result is another; remove one "
                    "of them, and the same command goes on"
                )
    return known


def _make(
    asked: Sequence[tuple[_Course, Sequence[Proposal]]],
    store: Store,
    folder: Path,
    run: Callable[[Sequence[Planned]], dict[Path, Problem]],
) -> None:
    """One round: the runs of all proposals, then the trials that they are."""
    runs = [
        (course, proposal, course.candidate.runs(proposal.point, folder))
        for course, proposals in asked
        for proposal in proposals
    ]
    problems = run(list({one.folder: one for _, _, planned in runs for one in planned}.values()))
    for course, proposal, planned in runs:
        course.trials.append(_ended(course, proposal, planned, problems))
        candidate = course.candidate
        store.add(candidate.study, candidate.figure.lower_is_better, candidate.searched, course.trials[-1])


def _problems(planned: Sequence[Planned], watcher: Watcher, pool: Pool) -> dict[Path, Problem]:
    """Make runs; what happened to those that diverged."""
    try:
        run_planned(planned, watcher=watcher, pool=pool)
    except RunsFailed as failed:
        if not all(problem.diverged for problem in failed.problems.values()):
            raise
        return dict(failed.problems)
    return {}


def _ended(course: _Course, proposal: Proposal, planned: Sequence[Planned], problems: dict[Path, Problem]) -> Trial:
    told = [f"seed {one.config.seed}: {problems[one.folder].sentence}" for one in planned if one.folder in problems]
    values = {}
    for one in planned if not told else ():
        values[str(one.config.seed)] = value = _figure(one, course.candidate)
        if not math.isfinite(value):
            told.append(f"seed {one.config.seed}: {course.candidate.figure.title} is {value}")
    return Trial(
        number=len(course.trials),
        point=proposal.point,
        why=proposal.why,
        values={} if told else values,
        problem="; ".join(told),
    )


def _figure(run: Planned, candidate: Candidate) -> float:
    """The held-out figure of a finished run."""
    value = RunFolder(run.folder).read_result().get(candidate.figure.name)
    return float(value) if isinstance(value, int | float) else math.nan


def _record(courses: Sequence[_Course], finished: bool) -> Search:
    first = courses[0].candidate
    config = first.config
    return Search(
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
