"""Files of a search: tune.json for reports, and the trials as an Optuna journal."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isda import __version__
from isda._utils.files import check_regular_file, write_text
from isda.lab.engine.config import Figure
from isda.lab.engine.digests import json_text, read_verified, with_digest
from isda.lab.engine.run_records import TUNE_FILE, is_number
from isda.lab.engine.tuning.search_space import Point, SearchedSetting, Trial

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution

SEARCH_FORMAT = 1
MAX_TRIALS = 10_000
"""Of a method; further ones in a file are ignored, so that reports stay small enough for a browser."""


@dataclass(frozen=True, kw_only=True)
class MethodSearchRecord:
    """The search of one method."""

    method: str
    """As the user wrote it."""
    held_out: str
    """Describes the held-out data."""
    searched: tuple[SearchedSetting, ...]
    trials: tuple[Trial, ...]
    chosen: Point | None
    """The best point; None if there is nothing to choose, or no finished trial."""
    chosen_method: str
    """The method with the chosen values as options, settings of the run included."""
    notes: tuple[str, ...] = ()
    """About a choice at the edge of the tried values."""

    @property
    def inside(self) -> bool:
        """Whether the choice is inside the tried values."""
        return self.chosen is not None and not self.notes

    def as_json(self) -> dict[str, Any]:
        """The search as plain values."""
        return asdict(self) | {"trials": [trial.as_json() for trial in self.trials], "inside": self.inside}

    @property
    def best(self) -> Trial | None:
        """The trial of the choice."""
        return next((trial for trial in self.trials if trial.point == self.chosen), None)


@dataclass(frozen=True, kw_only=True)
class SearchRecord:
    """The search of a tune folder."""

    data: str
    network: str
    scale: str
    epochs: int
    figure: Figure
    """The figure to choose by."""
    sampler: str
    seeds: tuple[int, ...]
    """Of the runs of each trial."""
    finished: bool
    methods: tuple[MethodSearchRecord, ...]
    folder: Path | None = None
    """It was read from."""

    @property
    def title(self) -> str:
        """Data and network."""
        return f"{self.data} with {self.network}"

    def as_json(self) -> dict[str, Any]:
        """The search as plain values."""
        record = {name: value for name, value in asdict(self).items() if name not in ("folder", "methods")}
        methods = [method.as_json() for method in self.methods]
        return {"format": SEARCH_FORMAT, "version": __version__, **record, "methods": methods}


def write_search(search: SearchRecord, folder: Path) -> None:
    """Replace the folder's tune.json."""
    write_text(folder / TUNE_FILE, json_text(with_digest(search.as_json()), indent=1) + "\n")


def find_searches(paths: Iterable[Path]) -> list[SearchRecord]:
    """The searches in folders at any depth, each once."""
    unique: dict[Path, Path] = {}
    for path in paths:
        for folder, below, files in os.walk(path):
            below.sort()
            if TUNE_FILE in files:
                unique.setdefault(Path(folder).resolve(), Path(folder))
    return [read_search(folder) for folder in unique.values()]


def read_search(folder: Path) -> SearchRecord:
    """Read tune.json; raises a ValueError if it is damaged."""
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
            methods=tuple(map(_read_method, stored["methods"])),
            folder=folder,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path} does not describe a search: {error!r}") from error


def _read_method(stored: Mapping[str, Any]) -> MethodSearchRecord:
    searched = tuple(map(_read_searched, stored["searched"]))
    trials = tuple(_read_trial(number, trial, searched) for number, trial in enumerate(stored["trials"][:MAX_TRIALS]))
    chosen = stored["chosen"]
    if chosen is not None and all(trial.point != chosen for trial in trials):
        raise ValueError(f"no trial has the chosen point {chosen!r}")
    return MethodSearchRecord(
        method=str(stored["method"]),
        held_out=str(stored["held_out"]),
        searched=searched,
        trials=trials,
        chosen=chosen,
        chosen_method=str(stored["chosen_method"]),
        notes=tuple(map(str, stored["notes"])),
    )


def _read_searched(stored: Mapping[str, Any]) -> SearchedSetting:
    ends = (stored["low"], stored["high"])
    setting = SearchedSetting(
        name=str(stored["name"]),
        of_method=stored["of_method"] is True,
        values=tuple(stored["values"]),
        low=ends[0],
        high=ends[1],
    )
    if not all(isinstance(value, str | bool) or _finite(value) for value in setting.values):
        raise ValueError(f"{setting.name} must have words or finite numbers as values, got {setting.values!r}")
    if not setting.values and not all(map(_finite, ends)):
        raise ValueError(f"{setting.name} must have values or a range, got {ends!r}")
    return setting


def _read_trial(number: int, stored: Mapping[str, Any], searched: tuple[SearchedSetting, ...]) -> Trial:
    point, values = dict(stored["point"]), dict(stored["values"])
    names = {setting.name for setting in searched}
    if set(point) != names:
        raise ValueError(f"trial {number} must have a value for each of {sorted(names)}, got {point!r}")
    for setting in searched:
        value = point[setting.name]
        if not (_finite(value) if setting.numeric else value in setting.values):
            raise ValueError(f"trial {number} must have values of the searched settings, got {point!r}")
    if not all(map(_finite, values.values())):
        raise ValueError(f"trial {number} must have finite figures, got {values!r}")
    return Trial(number=number, point=point, why=str(stored["why"]), values=values, problem=str(stored["problem"]))


def _finite(value: Any) -> bool:
    return is_number(value) and math.isfinite(value)


JOURNAL_FILE = "optuna.journal"


def silence_optuna() -> None:
    """Disable Optuna's messages about every study and trial."""
    from optuna import logging

    logging.set_verbosity(logging.WARNING)


def optuna_distribution(setting: SearchedSetting, *further: Any) -> BaseDistribution:
    """Optuna's distribution of a setting, and of ``further`` numbers to which a grid was widened or refined.

    Ranges of positive numbers have a logarithmic scale.
    """
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if setting.values and not (setting.numeric and further):
        return CategoricalDistribution(setting.values)
    ends: Sequence[Any] = (*setting.values, *further) if setting.values else (setting.low, setting.high)
    low, high, log = min(ends), max(ends), not setting.values and min(ends) > 0
    return IntDistribution(low, high, log=log) if setting.whole else FloatDistribution(low, high, log=log)


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
        with self._reading():
            _drop_cut_line(self.path)
            backend = JournalFileBackend(str(self.path), lock_obj=_NoLock())  # type: ignore[arg-type]
            self.storage = JournalStorage(backend)

    def trials(self, study: str, lower_is_better: bool) -> list[Trial]:
        """The finished trials of a study, in the order of their proposal."""
        with self._reading():
            return [
                Trial(number=frozen.number, point=dict(frozen.params), **_trial_fields(frozen.user_attrs))
                for frozen in self._study(study, lower_is_better).trials
            ]

    def add(self, study: str, lower_is_better: bool, searched: Sequence[SearchedSetting], trial: Trial) -> None:
        """Write a finished trial."""
        from optuna.trial import TrialState, create_trial

        self._study(study, lower_is_better).add_trial(
            create_trial(
                state=TrialState.FAIL if trial.value is None else TrialState.COMPLETE,
                value=trial.value,
                params=trial.point,
                distributions={
                    setting.name: optuna_distribution(setting, trial.point[setting.name]) for setting in searched
                },
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

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Turn the errors of Optuna into a ValueError."""
        try:
            yield
        except OSError:
            raise
        except Exception as error:
            raise ValueError(
                f"{self.path} is damaged: {error}; remove it and run the same command to resume: finished runs are not "
                "repeated"
            ) from error


class _NoLock:
    """Replaces Optuna's lock, which would outlive a killed process."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


def _drop_cut_line(path: Path) -> None:
    """Remove an incomplete last line, as a kill leaves it."""
    check_regular_file(path)
    content = path.read_bytes() if path.exists() else b""
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)


def _trial_fields(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {"why": attributes["why"], "values": dict(attributes["values"]), "problem": attributes["problem"]}
