"""Planned runs as a file, from which another process, or another machine, makes one of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from isda.engine.folder.seal import json_text, read_sealed, sealed
from isda.engine.grammar import own_names
from isda.engine.planned import Planned
from isda.engine.registry import find_task, reference
from isda.engine.saving import Saving
from isda.files import write_text

__all__ = ["FORMAT", "own_code", "plan_text", "read_planned", "write_plan"]

FORMAT = 1


def plan_text(planned: Sequence[Planned], threads: int | None = None) -> str:
    """The plan as JSON; paths are absolute, the data go by the name that the user gave them.

    Args:
        planned: the runs, in the order of their numbers.
        threads: CPU threads of each process; torch's choice for None.
    """
    record = {"format": FORMAT, "threads": threads, "runs": [_record(one) for one in planned]}
    return json_text(sealed(record), indent=1) + "\n"


def write_plan(planned: Sequence[Planned], path: Path, threads: int | None = None) -> None:
    """Write `plan_text` to a file."""
    write_text(path, plan_text(planned, threads))


def own_code(planned: Sequence[Planned]) -> list[str]:
    """The words for `isda run` that name code of the user's own which the runs use."""
    names = sorted({name for one in planned for name in _own(reference(one.task), one.config.asked)})
    return ["--own", *names] if names else []


def read_planned(path: Path, number: int, own: Sequence[str] = ()) -> tuple[Planned, int | None]:
    """Run ``number`` of a plan, from 0, and the CPU threads of its processes.

    Args:
        path: of the plan.
        number: of the run.
        own: names of code that may be imported: a user has written them, or the script that a user submits.

    Raises:
        ValueError: names what is wrong with the file, or the code that nobody has named.
    """
    stored = read_sealed(path)
    if stored.get("format") != FORMAT:
        raise ValueError(f"{path} must be a plan of format {FORMAT}, got {stored.get('format')!r}")
    try:
        return _read(stored, path, number, own), stored["threads"]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not the plan that it says it is: {error!r}") from error


def _read(stored: dict[str, Any], path: Path, number: int, own: Sequence[str]) -> Planned:
    runs = stored["runs"]
    if not 0 <= number < len(runs):
        raise ValueError(f"number must be one of the {len(runs)} runs of {path}, from 0, got {number}")
    record = runs[number]
    unnamed = [name for name in _own(record["task"], record["config"]["asked"]) if name not in own]
    if unnamed:
        raise ValueError(f"run {number} of {path} uses code of its own; to have it imported, add --own {unnamed[0]}")
    task = type(find_task(record["task"]))
    return Planned(
        task=task,
        config=task.config_type.from_stored(record["config"], path),
        folder=Path(record["folder"]),
        data=record["data"],
        data_root=None if record["data_root"] is None else Path(record["data_root"]),
        device=record["device"],
        saving=Saving(**record["saving"]),
        workers=record["workers"],
    )


def _record(one: Planned) -> dict[str, Any]:
    return {
        "task": reference(one.task),
        "config": asdict(one.config),
        "folder": os.path.abspath(one.folder),
        "data": one.data,
        "data_root": None if one.data_root is None else os.path.abspath(one.data_root),
        "device": one.device,
        "saving": asdict(one.saving),
        "workers": one.workers,
    }


def _own(task: str, asked: dict[str, Any]) -> list[str]:
    return ([task] if ":" in task else []) + own_names(str(asked.get("method", "")))
