"""What a user asks of a search, checked against tasks and data before a folder is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

from isda.choices import check_choice
from isda.engine.comparing import Planner
from isda.engine.grammar import split_method
from isda.engine.settings import RunSettings
from isda.engine.task import HeldOut
from isda.engine.tuning.candidate import Candidate, How
from isda.engine.tuning.searched import Searched, read_searches

__all__ = ["candidates_of"]


def candidates_of(
    settings: RunSettings, methods: Sequence[str], search: Sequence[str], how: How, planner: Planner
) -> list[Candidate]:
    """What is searched of each method, all of it checked.

    Args:
        settings: what all runs share; their method and seed are replaced.
        methods: as in `RunSettings.method`.
        search: what to search, as `read_searches` reads it; the published grids of the methods if it is empty.
        how: to search.
        planner: makes runs of settings.

    Raises:
        ValueError: a setting, a method or what is searched is wrong, or there is nothing to choose.
    """
    if not methods or len(set(methods)) < len(methods):
        raise ValueError(f"methods must be given, each once, got {list(methods)}")
    held, options = dict[str, HeldOut](), dict[str, Mapping[str, type]]()
    for method in methods:
        own = replace(settings, method=method)
        task, data = planner.task_and_data(own)
        held[method], options[method] = task.held_out(own, data), task.options(method)
    reserved = [name for one in held.values() for name in _differing(one)]
    searches = read_searches(search, options, settings, reserved)
    if not search:
        searches = {method: _published(held[method].final, planner) for method in methods}
    if not any(searches.values()):
        raise ValueError(f"there is nothing to choose of {', '.join(methods)}; say what: --search NAME=VALUE,VALUE")
    found = [
        Candidate(
            method=method,
            held_out=held[method],
            searched=searches[method],
            planner=planner,
            how=how,
            config=planner.resolve(replace(held[method].choosing, seed=how.seeds[0])),
        )
        for method in methods
    ]
    for one in found:
        planner.resolve(one.held_out.final)
        one.check()
    figures = {one.figure.name for one in found}
    if len(figures) > 1:
        raise ValueError(f"methods must be chosen by one figure, got {' and '.join(sorted(figures))}")
    return found


def _differing(held: HeldOut) -> list[str]:
    """The settings that decide what a run is judged by."""
    names = [f.name for f in fields(held.final)]
    return [name for name in names if getattr(held.choosing, name) != getattr(held.final, name)]


def _published(settings: RunSettings, planner: Planner) -> tuple[Searched, ...]:
    """The grid that the method declares, without what the user has given."""
    task, data = planner.task_and_data(settings)
    text = settings.method or ""
    given = {word.partition("=")[0] for word in split_method(text)[1].split(",")} | set(settings.asked())
    known = task.options(text)
    grid = task.grid(settings, data)
    for name in grid:
        check_choice(f"setting in the grid of method {text}", name, known)
    return tuple(
        Searched(name=name, of_method=True, values=tuple(known[name](value) for value in values))
        for name, values in grid.items()
        if name not in given
    )
