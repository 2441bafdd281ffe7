"""A run in several processes of torchrun; as a program, what starts torchrun, and one of its processes."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from isda.lab.engine.executors.runs import PlannedRun, RunProblem, train_run
from isda.lab.engine.processes import NonFiniteLoss, Stopped, stop_on_signals, stop_with_parent
from isda.lab.engine.run_folder import RunFolder

POLL_SECONDS = 0.1


def run_in_processes(run: PlannedRun, processes: int, threads: int) -> RunProblem | None:
    """Execute a run in several processes, which share the CPU threads."""
    module = "isda.lab.engine.executors.several"
    with tempfile.TemporaryDirectory(prefix="isda-") as folder:
        plan, problem, log = (Path(folder) / name for name in ("run.pickle", "problem.pickle", "log.txt"))
        plan.write_bytes(pickle.dumps(run))
        torchrun = ["--standalone", "--nproc-per-node", str(processes), "-m", module, "train"]
        torchrun += [str(plan), str(problem), str(max(1, threads // processes))]
        stopped = _wait_for([sys.executable, "-m", module, "torchrun", str(os.getpid()), *torchrun], log)
        if RunFolder(run.folder).finished:
            return None
        if stopped:
            return RunProblem(f"stopped by {stopped}; the run is saved")
        if problem.is_file():
            found: RunProblem = pickle.loads(problem.read_bytes())
            return found
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
            time.sleep(POLL_SECONDS)
    return stop.requested


def _launch(parent: int, arguments: list[str]) -> None:
    """Run torchrun, and stop it when the parent process has ended."""
    from torch.distributed.run import main

    threading.Thread(target=stop_with_parent, args=(parent,), daemon=True).start()
    main(arguments)


def _train(plan: Path, problem: Path, threads: int) -> None:
    """Train a run as one of the processes of torchrun."""
    import torch

    sys.path.append(os.getcwd())  # of a task of the user's own
    torch.set_num_threads(threads)
    try:
        train_run(pickle.loads(plan.read_bytes()))  # written by the process that started this one
    except Stopped as stopped:
        sys.exit(stopped.status)
    except Exception as error:
        if os.environ.get("RANK") == "0":
            found = RunProblem(str(error) or type(error).__name__, isinstance(error, NonFiniteLoss))
            problem.write_bytes(pickle.dumps(found))
        raise


if __name__ == "__main__":
    if sys.argv[1] == "torchrun":
        _launch(int(sys.argv[2]), sys.argv[3:])
    else:
        _train(Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
