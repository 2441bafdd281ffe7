"""How far the search of one method has come: what it asks for next, and what became of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from isda.engine.folder.run_folder import RunFolder
from isda.engine.planned import Planned, Problem
from isda.engine.tuning.candidate import Candidate
from isda.engine.tuning.record import MethodSearch
from isda.engine.tuning.trials import Proposal, Trial, best

__all__ = ["Course"]


@dataclass
class Course:
    """A candidate and its trials so far."""

    candidate: Candidate
    trials: list[Trial] = field(default_factory=list)

    def ask(self, level: int = 0) -> list[Proposal]:
        """What to try next, up to ``level`` trials where the search itself has ended."""
        return self.candidate.proposer().next(self.trials, level) if self.candidate.searched else []

    def absorb(self, proposal: Proposal, planned: Sequence[Planned], problems: Mapping[Path, Problem]) -> Trial:
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

    def held_out_figure(self, run: Planned) -> float:
        """What a finished run is judged by; not a number if it does not have it."""
        value = RunFolder(run.folder).read_result().get(self.candidate.figure.name)
        return float(value) if isinstance(value, int | float) else math.nan

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
