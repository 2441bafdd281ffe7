"""Executor: writes a Slurm array job, which the user submits.

Each array element runs ``isda run``. It saves on SIGTERM and is resumed when it is requeued.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from isda._utils.files import write_text
from isda.lab.engine.executors import (
    FORWARDED_VARIABLES,
    Executor,
    ExecutorRequest,
    PlannedRun,
    RunProblem,
    RunsDeferred,
    Watcher,
)
from isda.lab.engine.executors.worker import plan_text, user_code_arguments
from isda.lab.engine.run_folder import RunFolder

ACCEPTED_OPTIONS = ("cpus_per_run", "gpus_per_run", "sbatch")
# Seconds before its time limit at which a job is signalled to save.
SECONDS_TO_SAVE = 120
_OPTION = re.compile(r"[a-z][a-z-]*(=[^\s#]+)?")

_SCRIPT = """\
#!/bin/bash
# {count} of {total} runs, each executed by one element of an array job: sbatch {name}
{options}
cd {directory} || exit 1
{environment}
# Preempted or cancelled (TERM), the run saves and Slurm decides; near the time limit (USR1), it saves and is requeued.
trap 'caught=yes; kill -TERM "$run"' TERM INT
trap 'caught=yes; again=yes; kill -TERM "$run"' USR1
{command} "$SLURM_ARRAY_TASK_ID"{own} &
run=$!
wait "$run"
status=$?
while [ "$caught" ]; do
  caught=
  wait "$run"
  status=$?
done
if [ "$again" ] && [ "$status" -ne 0 ]; then
  scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID"
fi
exit "$status"
"""


@contextmanager
def open_executor(request: ExecutorRequest) -> Iterator[Executor]:
    """An array job for a request."""
    for option in request.options.sbatch:
        if not _OPTION.fullmatch(option):
            raise ValueError(f"sbatch must be options of sbatch without dashes, such as partition=gpu, got {option!r}")
    gpus = request.options.gpus_per_run
    if gpus is not None and gpus != int(gpus):
        raise ValueError(f"gpus_per_run must be a whole number with --on slurm, got {gpus}")
    yield _SlurmExecutor(request)


class _SlurmExecutor(Executor):
    def __init__(self, request: ExecutorRequest) -> None:
        self.request = request

    def check_sequential(self) -> None:
        raise ValueError(
            "an array job cannot execute runs that depend on others, as the trials of a search do; submit one job that "
            "runs the same command with --jobs N or --on ray instead of --on slurm (docs/scale.md)"
        )

    def run(self, planned: Sequence[PlannedRun], watcher: Watcher) -> dict[Path, RunProblem]:
        """Write the job, unless all runs are finished."""
        unfinished = [number for number, run in enumerate(planned) if not RunFolder(run.folder).finished]
        if not unfinished:
            return {}
        processes = self.request.options.processes_per_run
        threads = self.request.threads or self.request.options.cpus_per_run
        text = plan_text(planned, threads and max(1, threads // processes))
        # Named by its content: waiting jobs keep their plan if others are written to this folder.
        name = hashlib.sha256(text.encode()).hexdigest()[:8]
        folder = Path(os.path.abspath(self.request.folder)) / "slurm"
        plan, script = folder / f"{name}.json", folder / f"{name}.sh"
        write_text(plan, text)
        write_text(script, self._script(planned, unfinished, plan, script))
        raise RunsDeferred(
            f"Nothing is trained yet. Submit the {len(unfinished)} of {len(planned)} runs that are not finished:\n"
            f"  sbatch {shlex.quote(str(script))}\n"
            f"When they are finished, print the table:\n  {shlex.join(self.request.command)}"
        )

    def _script(self, planned: Sequence[PlannedRun], numbers: Sequence[int], plan: Path, script: Path) -> str:
        executor = self.request.options
        parallel = "" if executor.jobs is None else f"%{executor.jobs}"
        log = str(plan.parent / "%A_%a.log").replace('"', r"\"")
        options = [
            "job-name=isda",
            f"array={array_ranges(numbers)}{parallel}",
            f'output="{log}"',
            "open-mode=append",
            "requeue",
            f"signal=B:USR1@{SECONDS_TO_SAVE}",
            f"cpus-per-task={executor.cpus_per_run or executor.processes_per_run}",
        ]
        options += [f"gres=gpu:{int(executor.gpus_per_run)}"] if executor.gpus_per_run else []
        torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(executor.processes_per_run), "-m"]
        launcher = [sys.executable, "-m", *(torchrun if executor.processes_per_run > 1 else [])]
        environment = {name: os.environ[name] for name in FORWARDED_VARIABLES if name in os.environ}
        return _SCRIPT.format(
            count=len(numbers),
            total=len(planned),
            name=shlex.quote(str(script)),
            options="\n".join(f"#SBATCH --{option}" for option in (*options, *executor.sbatch)),
            directory=shlex.quote(os.getcwd()),
            environment="\n".join(f"export {name}={shlex.quote(value)}" for name, value in environment.items()),
            command=shlex.join([*launcher, "isda", "run", str(plan)]),
            own="".join(f" {shlex.quote(word)}" for word in user_code_arguments(planned)),
        )


def array_ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers in the syntax of sbatch.

    Example:
        >>> array_ranges([0, 1, 2, 5, 7, 8])
        '0-2,5,7-8'
    """
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)
