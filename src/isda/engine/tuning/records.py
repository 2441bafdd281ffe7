"""Files of a search: tune.json for reports, and the trials as an Optuna journal."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isda import __version__
from isda._utils.files import check_regular_file, write_text
from isda.engine.config import Figure
from isda.engine.digests import json_text, read_verified, with_digest
from isda.engine.run_records import TUNE_FILE, is_number
from isda.engine.tuning.search_space import Point, SearchedSetting, Trial

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution

SEARCH_FORMAT = 1
MAX_TRIALS = 10_000
"""Of a method; more are not read: a file that somebody sends must not make a page that no browser opens."""


@dataclass(frozen=True, kw_only=True)
class MethodSearchRecord:
    """What was tried of one method."""

    method: str
    """As the user wrote it."""
    told: str
    """What was held out."""
    searched: tuple[SearchedSetting, ...]
    trials: tuple[Trial, ...]
    chosen: Point | None
    """The best point; None if there is nothing to choose, or no trial yet that came to its end."""
    chosen_method: str
    """The method with the choice behind its colon, settings of the run included."""
    notes: tuple[str, ...] = ()
    """Where the choice is at an edge of what was tried; nothing if it is inside."""

    @property
    def inside(self) -> bool:
        """Whether the choice lies inside of what was tried."""
        return self.chosen is not None and not self.notes

    @property
    def best(self) -> Trial | None:
        """The trial of the choice."""
        return next((trial for trial in self.trials if trial.point == self.chosen), None)


@dataclass(frozen=True, kw_only=True)
class SearchRecord:
    """All of a tune folder's search."""

    data: str
    network: str
    scale: str
    epochs: int
    figure: Figure
    """What is chosen by."""
    sampler: str
    seeds: tuple[int, ...]
    """Of the runs of each trial."""
    finished: bool
    methods: tuple[MethodSearchRecord, ...]
    folder: Path | None = None
    """Where it was read from."""

    @property
    def title(self) -> str:
        """What was searched where."""
        return f"{self.data} with {self.network}"

    def as_json(self) -> dict[str, Any]:
        """The search as plain values."""
        return {
            "format": SEARCH_FORMAT,
            "version": __version__,
            "data": self.data,
            "network": self.network,
            "scale": self.scale,
            "epochs": self.epochs,
            "figure": asdict(self.figure),
            "sampler": self.sampler,
            "seeds": list(self.seeds),
            "finished": self.finished,
            "methods": [
                {
                    "method": one.method,
                    "held_out": one.told,
                    "searched": [asdict(setting) for setting in one.searched],
                    "trials": [trial.as_json() for trial in one.trials],
                    "chosen": one.chosen,
                    "chosen_method": one.chosen_method,
                    "inside": one.inside,
                    "notes": list(one.notes),
                }
                for one in self.methods
            ],
        }


def write_search(search: SearchRecord, folder: Path) -> None:
    """Replace the folder's tune.json."""
    write_text(folder / TUNE_FILE, json_text(with_digest(search.as_json()), indent=1) + "\n")


def find_searches(paths: Iterable[Path]) -> list[SearchRecord]:
    """The searches at and below some folders, each once."""
    found: dict[Path, Path] = {}
    for path in paths:
        for folder, below, files in os.walk(path):
            below.sort()
            if TUNE_FILE in files:
                found.setdefault(Path(folder).resolve(), Path(folder))
    return [read_search(folder) for folder in found.values()]


def read_search(folder: Path) -> SearchRecord:
    """Read tune.json; a ValueError says what is wrong with it."""
    path = folder / TUNE_FILE
    stored = read_verified(path)
    if stored.get("format") != SEARCH_FORMAT:
        raise ValueError(f"{path} must be of format {SEARCH_FORMAT}, got {stored.get('format')!r}")
    try:
        return SearchRecord(
            data=str(stored["data"]),
            network=str(stored["network"]),
            scale=str(stored["scale"]),
            epochs=int(stored["epochs"]),
            figure=Figure(**stored["figure"]),
            sampler=str(stored["sampler"]),
            seeds=tuple(int(seed) for seed in stored["seeds"]),
            finished=stored["finished"] is True,
            methods=tuple(_read_method(one) for one in stored["methods"]),
            folder=folder,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path} does not describe a search: {error!r}") from error


def _read_method(stored: Mapping[str, Any]) -> MethodSearchRecord:
    searched = tuple(_read_searched(one) for one in stored["searched"])
    trials = tuple(_read_trial(number, one, searched) for number, one in enumerate(stored["trials"][:MAX_TRIALS]))
    chosen = stored["chosen"]
    if chosen is not None and all(trial.point != chosen for trial in trials):
        raise ValueError(f"no trial has the point that is chosen, {chosen!r}")
    return MethodSearchRecord(
        method=str(stored["method"]),
        told=str(stored["held_out"]),
        searched=searched,
        trials=trials,
        chosen=chosen,
        chosen_method=str(stored["chosen_method"]),
        notes=tuple(map(str, stored["notes"])),
    )


def _read_searched(stored: Mapping[str, Any]) -> SearchedSetting:
    ends = (stored["low"], stored["high"])
    one = SearchedSetting(
        name=str(stored["name"]),
        of_method=stored["of_method"] is True,
        values=tuple(stored["values"]),
        low=ends[0],
        high=ends[1],
    )
    if not all(isinstance(value, str | bool) or _finite(value) for value in one.values):
        raise ValueError(f"{one.name} must have words or finite numbers as values, got {one.values!r}")
    if not one.values and not all(map(_finite, ends)):
        raise ValueError(f"{one.name} must have values or a range, got {ends!r}")
    return one


def _read_trial(number: int, stored: Mapping[str, Any], searched: tuple[SearchedSetting, ...]) -> Trial:
    point, values = dict(stored["point"]), dict(stored["values"])
    names = {one.name for one in searched}
    if set(point) != names:
        raise ValueError(f"trial {number} must have a value for each of {sorted(names)}, got {point!r}")
    if not all(_finite(point[one.name]) if one.numeric else point[one.name] in one.values for one in searched):
        raise ValueError(f"trial {number} must have values of what was searched, got {point!r}")
    if not all(map(_finite, values.values())):
        raise ValueError(f"trial {number} must have finite figures, got {values!r}")
    return Trial(number=number, point=point, why=str(stored["why"]), values=values, problem=str(stored["problem"]))


def _finite(value: Any) -> bool:
    return is_number(value) and math.isfinite(value)


JOURNAL_FILE = "optuna.journal"


def silence_optuna() -> None:
    """Optuna speaks of every study and trial; the commands say what there is to say."""
    from optuna import logging

    logging.set_verbosity(logging.WARNING)


def optuna_distribution(one: SearchedSetting, *beside: Any) -> BaseDistribution:
    """What Optuna calls the values of a setting; ``beside`` are numbers that a grid has been widened or refined to.

    Ranges of positive numbers are on a logarithmic scale.
    """
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if one.values and not (one.numeric and beside):
        return CategoricalDistribution(one.values)
    ends: Sequence[Any] = (*one.values, *beside) if one.values else (one.low, one.high)
    low, high, log = min(ends), max(ends), not one.values and min(ends) > 0
    return IntDistribution(low, high, log=log) if one.whole else FloatDistribution(low, high, log=log)


class TrialJournal:
    """The journal of a tune folder, with a study for each method.

    Args:
        folder: of the search.
    """

    def __init__(self, folder: Path) -> None:
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        silence_optuna()
        self.path = folder / JOURNAL_FILE
        try:
            _drop_cut_line(self.path)
            backend = JournalFileBackend(str(self.path), lock_obj=_NoLock())  # type: ignore[arg-type]
            self.storage = JournalStorage(backend)
        except OSError:
            raise
        except Exception as error:
            raise self._damaged(error) from error

    def trials(self, study: str, lower_is_better: bool) -> list[Trial]:
        """The trials of a study that have ended, in the order in which they were proposed."""
        try:
            return [_trial_of(frozen) for frozen in self._study(study, lower_is_better).trials]
        except OSError:
            raise
        except Exception as error:
            raise self._damaged(error) from error

    def add(self, study: str, lower_is_better: bool, searched: Sequence[SearchedSetting], trial: Trial) -> None:
        """Write a trial that has ended."""
        from optuna.trial import TrialState, create_trial

        self._study(study, lower_is_better).add_trial(
            create_trial(
                state=TrialState.FAIL if trial.value is None else TrialState.COMPLETE,
                value=trial.value,
                params=trial.point,
                distributions={one.name: optuna_distribution(one, trial.point[one.name]) for one in searched},
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


class _NoLock:
    """In place of Optuna's lock, which would outlive a process that is killed."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


def _drop_cut_line(path: Path) -> None:
    """Remove what a kill has left of a line."""
    check_regular_file(path)
    content = path.read_bytes() if path.exists() else b""
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)


def _trial_of(frozen: Any) -> Trial:
    attributes = frozen.user_attrs
    return Trial(
        number=frozen.number,
        point=dict(frozen.params),
        why=attributes["why"],
        values=dict(attributes["values"]),
        problem=attributes["problem"],
    )
