"""The trials of a search on disk, as an Optuna journal: any tool that reads Optuna's studies reads it.

A trial is one line, written when its runs have ended. Only whoever holds the lock of the folder writes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isda.engine.tuning.searched import Searched
from isda.engine.tuning.trials import Trial
from isda.files import check_regular

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution

__all__ = ["STORE_FILE", "Store", "distribution", "quiet"]

STORE_FILE = "optuna.journal"


def quiet() -> None:
    """Optuna speaks of every study and trial; the commands say what there is to say."""
    from optuna import logging

    logging.set_verbosity(logging.WARNING)


def distribution(one: Searched, *beside: Any) -> BaseDistribution:
    """What Optuna calls the values of a setting; ``beside`` are numbers that a grid has been widened or refined to.

    Ranges of positive numbers are on a logarithmic scale.
    """
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if one.values and not (one.numeric and beside):
        return CategoricalDistribution(one.values)
    ends: Sequence[Any] = (*one.values, *beside) if one.values else (one.low, one.high)
    low, high, log = min(ends), max(ends), not one.values and min(ends) > 0
    return IntDistribution(low, high, log=log) if one.whole else FloatDistribution(low, high, log=log)


class Store:
    """The journal of a tune folder, with a study for each method.

    Args:
        folder: of the search.
    """

    def __init__(self, folder: Path) -> None:
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        quiet()
        self.path = folder / STORE_FILE
        try:
            _drop_cut_line(self.path)
            backend = JournalFileBackend(str(self.path), lock_obj=_HeldAlready())  # type: ignore[arg-type]
            self.storage = JournalStorage(backend)
        except OSError:
            raise
        except Exception as error:
            raise self._damaged(error) from error

    def trials(self, study: str, lower_is_better: bool) -> list[Trial]:
        """The trials of a study that have ended, in the order in which they were proposed."""
        try:
            return [_read(frozen) for frozen in self._study(study, lower_is_better).trials]
        except OSError:
            raise
        except Exception as error:
            raise self._damaged(error) from error

    def add(self, study: str, lower_is_better: bool, searched: Sequence[Searched], trial: Trial) -> None:
        """Write a trial that has ended."""
        from optuna.trial import TrialState, create_trial

        self._study(study, lower_is_better).add_trial(
            create_trial(
                state=TrialState.FAIL if trial.value is None else TrialState.COMPLETE,
                value=trial.value,
                params=trial.point,
                distributions={one.name: distribution(one, trial.point[one.name]) for one in searched},
                user_attrs={"why": trial.why, "values": trial.values, "problem": trial.problem},
            )
        )

    def _study(self, name: str, lower_is_better: bool) -> Study:
        from optuna import create_study, load_study
        from optuna.study import StudyDirection

        try:
            return load_study(study_name=name, storage=self.storage)
        except KeyError:
            direction = StudyDirection.MINIMIZE if lower_is_better else StudyDirection.MAXIMIZE
            return create_study(storage=self.storage, study_name=name, direction=direction)

    def _damaged(self, error: Exception) -> ValueError:
        return ValueError(
            f"{self.path} is damaged: {error}; remove it, and the same command goes on: finished runs are not repeated"
        )


class _HeldAlready:
    """In place of Optuna's lock, which would outlive a process that is killed."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


def _drop_cut_line(path: Path) -> None:
    """Remove what a kill has left of a line."""
    check_regular(path)
    content = path.read_bytes() if path.exists() else b""
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)


def _read(frozen: Any) -> Trial:
    attributes = frozen.user_attrs
    return Trial(
        number=frozen.number,
        point=dict(frozen.params),
        why=attributes["why"],
        values=dict(attributes["values"]),
        problem=attributes["problem"],
    )
