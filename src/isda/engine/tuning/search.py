"""The search itself: rounds of trials of all methods side by side, each an ordinary run, until nobody asks for more.

What was tried is in the store and in run folders: a search that was killed goes on as if it had not been.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from isda.engine.folder.run_folder import RunFolder
from isda.engine.many_runs import run_planned
from isda.engine.places.pool import Pool
from isda.engine.planned import Planned, Problem, RunsFailed, Watcher
from isda.engine.tuning.candidate import Candidate
from isda.engine.tuning.course import Course
from isda.engine.tuning.record import Search, write_search
from isda.engine.tuning.store import Store
from isda.engine.tuning.trials import Proposal, Trial

__all__ = ["search"]


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
    courses = [Course(one) for one in candidates]
    for course in courses:
        course.trials += _known(course, store, folder)
    while True:
        write_search(_record(courses, finished=False), folder)
        # Methods whose own search has ended get as many trials as the longest search of another one.
        level = max(len(course.trials) for course in courses)
        asked = [(course, course.ask()) for course in courses]
        if not any(proposals for _, proposals in asked):
            asked = [(course, course.ask(level)) for course in courses]
        if not any(proposals for _, proposals in asked):
            break
        _make(asked, store, folder, lambda planned: _problems(planned, watcher, pool))
    done = _record(courses, finished=True)
    write_search(done, folder)
    return done


def _known(course: Course, store: Store, folder: Path) -> list[Trial]:
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


def _make(
    asked: Sequence[tuple[Course, Sequence[Proposal]]],
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
        trial, candidate = course.absorb(proposal, planned, problems), course.candidate
        store.add(candidate.study, candidate.figure.lower_is_better, candidate.searched, trial)


def _problems(planned: Sequence[Planned], watcher: Watcher, pool: Pool) -> dict[Path, Problem]:
    """Make runs; what happened to those that diverged."""
    try:
        run_planned(planned, watcher=watcher, pool=pool)
    except RunsFailed as failed:
        if not all(problem.diverged for problem in failed.problems.values()):
            raise
        return dict(failed.problems)
    return {}


def _record(courses: Sequence[Course], finished: bool) -> Search:
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
