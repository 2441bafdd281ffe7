"""A run in several processes of one machine: torchrun starts them, and ends with whoever started it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from isda.engine.folder.run_folder import RunFolder
from isda.engine.interruptions import stop_on_signals
from isda.engine.places.plan import own_code, write_plan
from isda.engine.planned import Planned, Problem
from isda.engine.processes import stop_with_parent
from isda.engine.run_one import run_one

__all__ = ["launch", "run_in"]

# Seconds between two looks whether the processes have ended.
LOOK_EVERY = 0.1


def run_in(processes: int, one: Planned, threads: int) -> Problem | None:
    """Make a run: in this process, or in so many that torchrun starts, which share ``threads`` CPU threads."""
    if processes == 1:
        return run_one(one)
    if RunFolder(one.folder).finished:
        return None
    with tempfile.TemporaryDirectory(prefix="isda-") as folder:
        plan, told, log = (Path(folder) / name for name in ("plan.json", "problem.json", "log.txt"))
        write_plan([one], plan, max(1, threads // processes))
        words = ["--standalone", "--nproc-per-node", str(processes), "-m", "isda", "run", str(plan), "0"]
        words += ["--problem", str(told), *own_code([one])]
        stopped = _run([sys.executable, "-m", __name__, str(os.getpid()), *words], log)
        if RunFolder(one.folder).finished:
            return None
        if stopped:
            return Problem(f"stopped by {stopped}; the run is saved")
        if told.is_file():
            return Problem(*json.loads(told.read_text(encoding="utf-8")))
        said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["it said nothing"]
        return Problem(f"its processes ended without a result: {said[-1]}")


def _run(command: list[str], log: Path) -> str | None:
    """Wait for the end of a command; the name of the signal that it was passed, if one came."""
    with stop_on_signals() as stop, log.open("wb") as output:
        # In a session of its own: a Ctrl-C in the terminal is for us, who pass it on once.
        child = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        passed_on = False
        while child.poll() is None:
            if stop.requested and not passed_on:
                child.send_signal(signal.SIGTERM)
                passed_on = True
            time.sleep(LOOK_EVERY)
    return stop.requested


def launch() -> None:
    """As a script, with a process id and the words of torchrun: torchrun, which ends when that process has gone."""
    from torch.distributed.run import main

    threading.Thread(target=stop_with_parent, args=(int(sys.argv.pop(1)),), daemon=True).start()
    main()


if __name__ == "__main__":
    launch()
