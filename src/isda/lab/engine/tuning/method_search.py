"""The search: rounds of trials of all methods until no proposer has further trials.

All state is in the journal and the run folders, so a killed search is resumed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from isda.lab.engine.comparison import run_planned
from isda.lab.engine.executors import Executor, PlannedRun, RunProblem, RunsFailed, Watcher
from isda.lab.engine.run_folder import RunFolder
from isda.lab.engine.tuning.records import MethodSearchRecord, SearchRecord, TrialJournal, write_search
from isda.lab.engine.tuning.request import Candidate
from isda.lab.engine.tuning.search_space import Proposal, Trial, best_trial


@dataclass
class SearchState:
    """A candidate and its trials so far."""

    candidate: Candidate
    trials: list[Trial] = field(default_factory=list)

    def propose(self, level: int = 0) -> list[Proposal]:
        """The next trials; a search that has ended gets further ones until it has ``level``."""
        return self.candidate.proposer().next(self.trials, level) if self.candidate.searched else []

    def add(self, proposal: Proposal, planned: Sequence[PlannedRun], problems: Mapping[Path, RunProblem]) -> Trial:
        """Add the trial of a proposal whose runs have ended."""
        messages = [
            f"seed {run.config.seed}: {problems[run.folder].sentence}" for run in planned if run.folder in problems
        ]
        values = {}
        for run in planned if not messages else ():
            values[str(run.config.seed)] = value = self.held_out_figure(run)
            if not math.isfinite(value):
                messages.append(f"seed {run.config.seed}: {self.candidate.figure.title} is {value}")
        trial = Trial(
            number=len(self.trials),
            point=proposal.point,
            why=proposal.why,
            values={} if messages else values,
            problem="; ".join(messages),
        )
        self.trials.append(trial)
        return trial

    def held_out_figure(self, run: PlannedRun) -> float:
        """The figure of a finished run; NaN if it does not have it."""
        value = RunFolder(run.folder).read_result().get(self.candidate.figure.name)
        return float(value) if isinstance(value, int | float) else math.nan

    def record(self) -> MethodSearchRecord:
        """The search so far."""
        candidate = self.candidate
        best = best_trial(self.trials, candidate.figure.lower_is_better)
        notes = candidate.proposer().notes(self.trials) if candidate.searched else []
        return MethodSearchRecord(
            method=candidate.method,
            held_out=candidate.held_out.description,
            searched=candidate.searched,
            trials=tuple(self.trials),
            chosen=best.point if best else None,
            chosen_method=candidate.name(best.point) if best else "" if candidate.searched else candidate.method,
            notes=tuple(notes),
        )


def run_search(candidates: Sequence[Candidate], folder: Path, watcher: Watcher, executor: Executor) -> SearchRecord:
    """Execute all runs of the search that are missing; returns its record.

    Args:
        candidates: the methods.
        folder: of the search, locked by this process.
        watcher: receives the progress.
        executor: executes the runs.

    Raises:
        ValueError: a folder holds another run or a damaged one, or the journal is damaged.
        RunsFailed: runs failed for another reason than a NaN or infinite loss, after all others are finished.
        Stopped: after SIGTERM or Ctrl-C; the current runs have saved a checkpoint.
    """
    journal = TrialJournal(folder)
    states = [SearchState(candidate) for candidate in candidates]
    for state in states:
        state.trials += _stored_trials(state, journal, folder)
    while True:
        write_search(_record(states, finished=False), folder)
        # Methods whose search has ended get as many trials as the longest search of another one.
        level = max(len(state.trials) for state in states)
        proposals = [(state, state.propose()) for state in states]
        if not any(proposed for _, proposed in proposals):
            proposals = [(state, state.propose(level)) for state in states]
        if not any(proposed for _, proposed in proposals):
            break
        _run_round(proposals, journal, folder, watcher, executor)
    record = _record(states, finished=True)
    write_search(record, folder)
    return record


def _stored_trials(state: SearchState, journal: TrialJournal, folder: Path) -> list[Trial]:
    """The trials of the journal; raises a ValueError if they contradict the results of the runs."""
    candidate = state.candidate
    if not candidate.searched:
        return []
    trials = journal.trials(candidate.study, candidate.figure.lower_is_better)
    for trial in trials:
        for run in candidate.runs(trial.point, folder) if not trial.problem else ():
            value = trial.values.get(str(run.config.seed))
            if RunFolder(run.folder).finished and state.held_out_figure(run) != value:
                raise ValueError(
                    f"{journal.path} has {value} for {run.folder}, whose result differs; remove one of them and run "
                    "the same command to resume"
                )
    return trials


def _run_round(
    proposals: Sequence[tuple[SearchState, Sequence[Proposal]]],
    journal: TrialJournal,
    folder: Path,
    watcher: Watcher,
    executor: Executor,
) -> None:
    """Execute the runs of all proposals, and store the trials; only runs that diverged may fail."""
    rounds = [
        (state, proposal, state.candidate.runs(proposal.point, folder))
        for state, proposed in proposals
        for proposal in proposed
    ]
    distinct = {run.folder: run for _, _, planned in rounds for run in planned}
    problems: Mapping[Path, RunProblem] = {}
    try:
        run_planned(list(distinct.values()), watcher=watcher, executor=executor)
    except RunsFailed as failed:
        if not all(problem.diverged for problem in failed.problems.values()):
            raise
        problems = failed.problems
    for state, proposal, planned in rounds:
        trial, candidate = state.add(proposal, planned, problems), state.candidate
        journal.add(candidate.study, candidate.figure.lower_is_better, candidate.searched, trial)


def _record(states: Sequence[SearchState], finished: bool) -> SearchRecord:
    first = states[0].candidate
    config = first.config
    return SearchRecord(
        data=config.data,
        network=config.network,
        scale=config.scale,
        epochs=config.epochs,
        figure=first.figure,
        sampler=first.options.sampler,
        seeds=first.options.seeds,
        finished=finished,
        methods=tuple(state.record() for state in states),
    )
