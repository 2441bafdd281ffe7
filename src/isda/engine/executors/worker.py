"""Run one planned run: in this process, from a plan file, or in several processes by torchrun."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

from isda._utils.errors import describe_error, is_package_error
from isda._utils.files import write_text
from isda.engine.callbacks import TensorBoard
from isda.engine.digests import json_text, read_verified, with_digest
from isda.engine.executors import PlannedRun, RunProblem
from isda.engine.loop import Saving, train
from isda.engine.processes import NonFiniteLoss, Stopped, join_processes, stop_on_signals, stop_with_parent
from isda.engine.run_folder import ERROR_FILE, RunFolder
from isda.engine.task import Task, find_task, task_reference


@lru_cache(maxsize=1)
def load_data_cached(task: type[Task], data: str | None, root: Path | None) -> Any:
    """The data of a task; the last one asked for is kept."""
    return task().load(data, root)


def execute_run(one: PlannedRun) -> None:
    """Train, alone or as one of the processes that torchrun started; a run that is finished stays as it is.

    Raises:
        Stopped: SIGTERM or Ctrl-C came; a checkpoint was saved.
        Exception: whatever else ended the run, see `describe_problem`.
    """
    if RunFolder(one.folder).finished:
        return
    data = load_data_cached(one.task, one.data, one.data_root)
    with join_processes(one.device) as processes:
        train(
            one.config,
            data,
            one.folder,
            task=one.task(),
            processes=processes,
            saving=one.saving,
            hooks=[TensorBoard()],
            data_root=one.data_root,
            workers=one.workers,
        )


def describe_problem(error: Exception) -> RunProblem:
    """Why a run did not come to its end, in words."""
    if isinstance(error, Stopped):
        return RunProblem(str(error))
    told = (
        describe_error(error)
        if is_package_error(error)
        else f"{describe_error(error)}; the traceback is in {ERROR_FILE}"
    )
    return RunProblem(told, isinstance(error, NonFiniteLoss))


def try_run(one: PlannedRun) -> RunProblem | None:
    """Train in this process; what went wrong, if anything did."""
    try:
        execute_run(one)
    except Exception as error:
        return describe_problem(error)
    return None


PLAN_FORMAT = 1


def plan_text(planned: Sequence[PlannedRun], threads: int | None = None) -> str:
    """The plan as JSON; paths are absolute, the data go by the name that the user gave them.

    Args:
        planned: the runs, in the order of their numbers.
        threads: CPU threads of each process; torch's choice for None.
    """
    record = {"format": PLAN_FORMAT, "threads": threads, "runs": [_plan_record(one) for one in planned]}
    return json_text(with_digest(record), indent=1) + "\n"


def write_plan(planned: Sequence[PlannedRun], path: Path, threads: int | None = None) -> None:
    """Write `plan_text` to a file."""
    write_text(path, plan_text(planned, threads))


def user_code_arguments(planned: Sequence[PlannedRun]) -> list[str]:
    """The words for `isda run` that name code of the user's own which the runs use."""
    names = sorted({name for one in planned for name in _user_code(one)})
    return ["--own", *names] if names else []


def read_planned(path: Path, number: int, own: Sequence[str] = ()) -> tuple[PlannedRun, int | None]:
    """Run ``number`` of a plan, from 0, and the CPU threads of its processes.

    Args:
        path: of the plan.
        number: of the run.
        own: names of code that may be imported: a user has written them, or the script that a user submits.

    Raises:
        ValueError: names what is wrong with the file, or the code that nobody has named.
    """
    stored = read_verified(path)
    if stored.get("format") != PLAN_FORMAT:
        raise ValueError(f"{path} must be a plan of format {PLAN_FORMAT}, got {stored.get('format')!r}")
    try:
        return _planned_run(stored, path, number, own), stored["threads"]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not the plan that it says it is: {error!r}") from error


def _planned_run(stored: dict[str, Any], path: Path, number: int, own: Sequence[str]) -> PlannedRun:
    runs = stored["runs"]
    if not 0 <= number < len(runs):
        raise ValueError(f"number must be one of the {len(runs)} runs of {path}, from 0, got {number}")
    record = runs[number]
    _check_named([record["task"]] if ":" in record["task"] else [], own, path, number)
    task = find_task(record["task"])
    _check_named(task.user_code(str(record["config"]["settings"].get("method", ""))), own, path, number)
    return PlannedRun(
        task=type(task),
        config=task.config_type.from_stored(record["config"], path),
        folder=Path(record["folder"]),
        data=record["data"],
        data_root=None if record["data_root"] is None else Path(record["data_root"]),
        device=record["device"],
        saving=Saving(**record["saving"]),
        workers=record["workers"],
    )


def _plan_record(one: PlannedRun) -> dict[str, Any]:
    return {
        "task": task_reference(one.task),
        "config": asdict(one.config),
        "folder": os.path.abspath(one.folder),
        "data": one.data,
        "data_root": None if one.data_root is None else os.path.abspath(one.data_root),
        "device": one.device,
        "saving": asdict(one.saving),
        "workers": one.workers,
    }


def _user_code(one: PlannedRun) -> list[str]:
    reference, method = task_reference(one.task), str(one.config.settings.get("method", ""))
    return ([reference] if ":" in reference else []) + one.task.user_code(method)


def _check_named(names: Sequence[str], own: Sequence[str], path: Path, number: int) -> None:
    """Raise a ValueError for code of the user's own that would be imported and is not named."""
    for name in names:
        if name not in own:
            raise ValueError(f"run {number} of {path} uses code of its own; to have it imported, add --own {name}")


# Seconds between two looks whether the processes have ended.
TORCHRUN_POLL_SECONDS = 0.1


def run_in_processes(processes: int, one: PlannedRun, threads: int) -> RunProblem | None:
    """Make a run: in this process, or in so many that torchrun starts, which share ``threads`` CPU threads."""
    if processes == 1:
        return try_run(one)
    if RunFolder(one.folder).finished:
        return None
    with tempfile.TemporaryDirectory(prefix="isda-") as folder:
        plan, told, log = (Path(folder) / name for name in ("plan.json", "problem.json", "log.txt"))
        write_plan([one], plan, max(1, threads // processes))
        words = ["--standalone", "--nproc-per-node", str(processes), "-m", "isda", "run", str(plan), "0"]
        words += ["--problem", str(told), *user_code_arguments([one])]
        stopped = _wait_for([sys.executable, "-m", __name__, str(os.getpid()), *words], log)
        if RunFolder(one.folder).finished:
            return None
        if stopped:
            return RunProblem(f"stopped by {stopped}; the run is saved")
        if told.is_file():
            return RunProblem(*json.loads(told.read_text(encoding="utf-8")))
        said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["it said nothing"]
        return RunProblem(f"its processes ended without a result: {said[-1]}")


def _wait_for(command: list[str], log: Path) -> str | None:
    """Wait for the end of a command; the name of the signal that it was passed, if one came."""
    with stop_on_signals() as stop, log.open("wb") as output:
        # In a session of its own: a Ctrl-C in the terminal is for us, who pass it on once.
        child = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        passed_on = False
        while child.poll() is None:
            if stop.requested and not passed_on:
                child.send_signal(signal.SIGTERM)
                passed_on = True
            time.sleep(TORCHRUN_POLL_SECONDS)
    return stop.requested


def launch() -> None:
    """As a script, with a process id and the words of torchrun: torchrun, which ends when that process has gone."""
    from torch.distributed.run import main

    threading.Thread(target=stop_with_parent, args=(int(sys.argv.pop(1)),), daemon=True).start()
    main()


if __name__ == "__main__":
    launch()
