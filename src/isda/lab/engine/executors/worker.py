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
from isda.lab.engine.callbacks import TensorBoard
from isda.lab.engine.digests import json_text, read_verified, with_digest
from isda.lab.engine.executors import PlannedRun, RunProblem
from isda.lab.engine.loop import train
from isda.lab.engine.processes import NonFiniteLoss, Stopped, join_processes, stop_on_signals, stop_with_parent
from isda.lab.engine.run_folder import ERROR_FILE, RunFolder
from isda.lab.engine.settings import Saving
from isda.lab.engine.task import Task, find_task, task_reference


@lru_cache(maxsize=1)
def load_data_cached(task: type[Task], data: str | None, root: Path | None) -> Any:
    """The data of a task; the last data set is cached."""
    return task().load(data, root)


def execute_run(run: PlannedRun) -> None:
    """Train, alone or as one of the processes that torchrun started; a finished run is left as it is.

    Raises:
        Stopped: after SIGTERM or Ctrl-C; a checkpoint was saved.
        Exception: any other error of the run, see `describe_problem`.
    """
    if RunFolder(run.folder).finished:
        return
    data = load_data_cached(run.task, run.data, run.data_root)
    with join_processes(run.device) as processes:
        train(
            run.config,
            data,
            run.folder,
            task=run.task(),
            processes=processes,
            saving=run.saving,
            hooks=[TensorBoard()],
            data_root=run.data_root,
            workers=run.workers,
        )


def describe_problem(error: Exception) -> RunProblem:
    """Describe why a run failed."""
    if isinstance(error, Stopped):
        return RunProblem(str(error))
    hint = "" if is_package_error(error) else f"; the traceback is in {ERROR_FILE}"
    return RunProblem(f"{describe_error(error)}{hint}", isinstance(error, NonFiniteLoss))


PLAN_FORMAT = 1


def plan_text(planned: Sequence[PlannedRun], threads: int | None = None) -> str:
    """The plan as JSON, with absolute paths, and data as the user names them.

    Args:
        planned: the runs, in the order of their numbers.
        threads: CPU threads of each process; torch's choice for None.
    """
    record = {"format": PLAN_FORMAT, "threads": threads, "runs": [_plan_record(run) for run in planned]}
    return json_text(with_digest(record), indent=1) + "\n"


def user_code_arguments(planned: Sequence[PlannedRun]) -> list[str]:
    """The arguments of `isda run` that name the user code of the runs."""
    names = sorted({name for run in planned for name in _user_code(run)})
    return ["--own", *names] if names else []


def read_planned(path: Path, number: int, own: Sequence[str] = ()) -> tuple[PlannedRun, int | None]:
    """Run ``number`` of a plan, from 0, and the CPU threads of its processes.

    Args:
        path: of the plan.
        number: of the run.
        own: names of user code that may be imported, from the command line or the submitted script.

    Raises:
        ValueError: the file is damaged, or the run uses code that is not named.
    """
    stored = read_verified(path)
    if stored.get("format") != PLAN_FORMAT:
        raise ValueError(f"{path} must be a plan of format {PLAN_FORMAT}, got {stored.get('format')!r}")
    try:
        return _planned_run(stored, path, number, own), stored["threads"]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a valid plan: {error!r}") from error


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


def _plan_record(run: PlannedRun) -> dict[str, Any]:
    return {
        "task": task_reference(run.task),
        "config": asdict(run.config),
        "folder": os.path.abspath(run.folder),
        "data": run.data,
        "data_root": None if run.data_root is None else os.path.abspath(run.data_root),
        "device": run.device,
        "saving": asdict(run.saving),
        "workers": run.workers,
    }


def _user_code(run: PlannedRun) -> list[str]:
    reference, method = task_reference(run.task), str(run.config.settings.get("method", ""))
    return ([reference] if ":" in reference else []) + run.task.user_code(method)


def _check_named(names: Sequence[str], own: Sequence[str], path: Path, number: int) -> None:
    """Raise a ValueError for user code that would be imported and is not named on the command line."""
    for name in names:
        if name not in own:
            raise ValueError(f"run {number} of {path} uses user code; add --own {name} to import it")


# Seconds between two checks whether the processes have ended.
TORCHRUN_POLL_SECONDS = 0.1


def run_in_processes(processes: int, run: PlannedRun, threads: int) -> RunProblem | None:
    """Execute a run in this process, or in several of torchrun, which share ``threads`` CPU threads."""
    if processes == 1:
        try:
            execute_run(run)
        except Exception as error:
            return describe_problem(error)
        return None
    if RunFolder(run.folder).finished:
        return None
    with tempfile.TemporaryDirectory(prefix="isda-") as folder:
        plan, problem, log = (Path(folder) / name for name in ("plan.json", "problem.json", "log.txt"))
        write_text(plan, plan_text([run], max(1, threads // processes)))
        words = ["--standalone", "--nproc-per-node", str(processes), "-m", "isda", "run", str(plan), "0"]
        words += ["--problem", str(problem), *user_code_arguments([run])]
        stopped = _wait_for([sys.executable, "-m", __name__, str(os.getpid()), *words], log)
        if RunFolder(run.folder).finished:
            return None
        if stopped:
            return RunProblem(f"stopped by {stopped}; the run is saved")
        if problem.is_file():
            return RunProblem(*json.loads(problem.read_text(encoding="utf-8")))
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["no output"]
        return RunProblem(f"its processes ended without a result: {lines[-1]}")


def _wait_for(command: list[str], log: Path) -> str | None:
    """Run a command until it ends; returns the name of the signal that was forwarded to it, if any."""
    with stop_on_signals() as stop, log.open("wb") as output:
        # In its own session: Ctrl-C in the terminal reaches this process, which forwards it once.
        child = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        forwarded = False
        while child.poll() is None:
            if stop.requested and not forwarded:
                child.send_signal(signal.SIGTERM)
                forwarded = True
            time.sleep(TORCHRUN_POLL_SECONDS)
    return stop.requested


def launch() -> None:
    """Run torchrun with the arguments after the first, a process id; it stops when that process has ended."""
    from torch.distributed.run import main

    threading.Thread(target=stop_with_parent, args=(int(sys.argv.pop(1)),), daemon=True).start()
    main()


if __name__ == "__main__":
    launch()
