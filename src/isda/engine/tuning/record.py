"""tune.json: what a search has tried and chosen, for whoever looks at its folder."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from isda import __version__
from isda.engine.folder.figures import Figure
from isda.engine.folder.reading import TUNE_FILE, is_number
from isda.engine.folder.seal import json_text, read_sealed, sealed
from isda.engine.tuning.searched import Point, Searched
from isda.engine.tuning.trials import Trial
from isda.files import write_text

__all__ = ["MOST_TRIALS", "MethodSearch", "Search", "find_searches", "read_search", "write_search"]

FORMAT = 1
MOST_TRIALS = 10_000
"""Of a method; more are not read: a file that somebody sends must not make a page that no browser opens."""


@dataclass(frozen=True, kw_only=True)
class MethodSearch:
    """What was tried of one method."""

    method: str
    """As the user wrote it."""
    told: str
    """What was held out."""
    searched: tuple[Searched, ...]
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
class Search:
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
    methods: tuple[MethodSearch, ...]
    folder: Path | None = None
    """Where it was read from."""

    @property
    def title(self) -> str:
        """What was searched where."""
        return f"{self.data} with {self.network}"

    def as_json(self) -> dict[str, Any]:
        """The search as plain values."""
        return {
            "format": FORMAT,
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


def write_search(search: Search, folder: Path) -> None:
    """Replace the folder's tune.json."""
    write_text(folder / TUNE_FILE, json_text(sealed(search.as_json()), indent=1) + "\n")


def find_searches(paths: Iterable[Path]) -> list[Search]:
    """The searches at and below some folders, each once."""
    found: dict[Path, Path] = {}
    for path in paths:
        for folder, below, files in os.walk(path):
            below.sort()
            if TUNE_FILE in files:
                found.setdefault(Path(folder).resolve(), Path(folder))
    return [read_search(folder) for folder in found.values()]


def read_search(folder: Path) -> Search:
    """Read tune.json; a ValueError says what is wrong with it."""
    path = folder / TUNE_FILE
    stored = read_sealed(path)
    if stored.get("format") != FORMAT:
        raise ValueError(f"{path} must be of format {FORMAT}, got {stored.get('format')!r}")
    try:
        return Search(
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


def _read_method(stored: Mapping[str, Any]) -> MethodSearch:
    searched = tuple(_read_searched(one) for one in stored["searched"])
    trials = tuple(_read_trial(number, one, searched) for number, one in enumerate(stored["trials"][:MOST_TRIALS]))
    chosen = stored["chosen"]
    if chosen is not None and all(trial.point != chosen for trial in trials):
        raise ValueError(f"no trial has the point that is chosen, {chosen!r}")
    return MethodSearch(
        method=str(stored["method"]),
        told=str(stored["held_out"]),
        searched=searched,
        trials=trials,
        chosen=chosen,
        chosen_method=str(stored["chosen_method"]),
        notes=tuple(map(str, stored["notes"])),
    )


def _read_searched(stored: Mapping[str, Any]) -> Searched:
    ends = (stored["low"], stored["high"])
    one = Searched(
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


def _read_trial(number: int, stored: Mapping[str, Any], searched: tuple[Searched, ...]) -> Trial:
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
