"""Find the task of a command line; its settings are the options of ``isda train`` and ``isda compare``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from isda.engine.config import read_config
from isda.engine.run_folder import RunFolder
from isda.engine.task import Task, find_task, task_for_method
from isda.train import IMAGE_TASKS


class CommandTask(NamedTuple):
    """What a command line says about its task."""

    task: Task
    candidates: tuple[Task, ...]
    """The tasks that its methods may belong to."""

    def task_of(self, method: str) -> Task:
        """The task that a method, as it is written, belongs to."""
        return task_for_method(method, self.candidates)


def command_task(words: Sequence[str]) -> CommandTask:
    """Look through the words for --task, --method(s), and the folder of a run to resume.

    A task or method of the user's own is imported only if it stands in the words, never because a file names it.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--task")
    parser.add_argument("--method")
    parser.add_argument("--methods", nargs="*", default=[])
    parser.add_argument("--out")
    parser.add_argument("--resume", action="store_true")
    try:
        said, _ = parser.parse_known_args(words)
    except SystemExit:  # a value is missing; the real parser says so
        return CommandTask(find_task(IMAGE_TASKS[0]), tuple(map(find_task, IMAGE_TASKS)))
    if said.task is not None:
        task = find_task(said.task)
        return CommandTask(task, (task,))
    candidates = tuple(find_task(name) for name in IMAGE_TASKS)
    methods = [method for method in (said.method, *said.methods) if method]
    if not methods and said.resume and said.out and RunFolder(Path(said.out)).started:
        return CommandTask(_stored_task(RunFolder(Path(said.out))), candidates)
    found = [task_for_method(method, candidates) for method in methods]
    # The settings of the last candidate include those of the ones before it.
    return CommandTask(max(found, key=candidates.index, default=candidates[0]), candidates)


def _stored_task(run: RunFolder) -> Task:
    name = read_config(run.config_file).get("task")
    if not isinstance(name, str) or ":" in name:
        raise ValueError(f"{run.config_file} must name the task of the run, got {name!r}")
    return find_task(name)
