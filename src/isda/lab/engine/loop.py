"""The training loop of one run, and when it writes checkpoints.

All randomness of step t is a function of (seed, t, rank), so a resumed run is bitwise equal to an uninterrupted one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from isda.lab.engine.callbacks import Hook
from isda.lab.engine.checkpoint import Checkpoint
from isda.lab.engine.config import RunConfig, result_figures
from isda.lab.engine.processes import NonFiniteLoss, Processes, Stopped, deterministic_algorithms, stop_on_signals
from isda.lab.engine.run_folder import FolderInUse, RunFolder, folder_lock
from isda.lab.engine.settings import Saving
from isda.lab.engine.task import Job, RunContext, Task, find_task

# Steps between two agreements of the processes whether to save or stop, which synchronise a GPU.
AGREE_EVERY = 16


class CheckpointSchedule:
    """Decides after each step whether to save and whether to stop."""

    def __init__(self, run: RunFolder, job: Job, saving: Saving) -> None:
        self.run, self.job, self.saving = run, job, saving
        self.last = time.monotonic()

    def after_step(self, step: int, metrics: list[dict[str, Any]], stop: str | None) -> None:
        """Save if it is time; raise Stopped if a signal came and there are steps left.

        Args:
            step: the number of finished steps.
            metrics: of the epochs so far.
            stop: the name of the received signal, if any.
        """
        processes, total = self.job.processes, self.job.config.total_steps
        if step % getattr(self.job.config, "accumulate", 1) and step < total:
            return  # gradients that are being added up are in no checkpoint
        due, stopping = self._elapsed(), stop is not None
        if processes.world > 1:
            due, stopping = processes.any(due, stopping) if step % AGREE_EVERY == 0 or step == total else (False, False)
        counted = self.saving.steps is not None and step % self.saving.steps == 0
        if due or stopping or counted:
            self.save(step, metrics)
        if stopping and step < total:
            name = stop or "SIGTERM"
            raise Stopped(f"stopped by {stop or 'a signal'} after step {step} of {total}, which is saved", name)

    def save(self, step: int, metrics: list[dict[str, Any]]) -> None:
        """Write a checkpoint in the first process; the others wait for it."""
        self.job.check()
        state = self.job.state()
        if self.job.processes.first:
            self.run.checkpoints.save(Checkpoint(step, state, metrics))
        self.job.processes.wait()
        self.last = time.monotonic()

    def latest_checkpoint(self) -> str:
        """A sentence that names the latest checkpoint."""
        steps = self.run.checkpoints.steps
        return f"the checkpoint of step {steps[-1]} is kept" if steps else "there is no earlier checkpoint"

    def _elapsed(self) -> bool:
        return time.monotonic() - self.last > 60 * self.saving.minutes


def train(
    config: RunConfig,
    data: Any,
    folder: Path,
    *,
    task: Task | None = None,
    processes: Processes | None = None,
    saving: Saving | None = None,
    hooks: Sequence[Hook] = (),
    data_root: Path | None = None,
    workers: int | None = None,
) -> dict[str, Any]:
    """Execute a run, or resume an interrupted one; returns the content of result.json.

    Args:
        config: from the task's `resolve`.
        data: from the task's `load`.
        folder: the run folder; an interrupted run in it is resumed.
        task: of the configuration; by default found by the name in it.
        processes: that train together; by default this process alone, on the CPU.
        saving: when to write checkpoints.
        hooks: called during the run, in the first process.
        data_root: the folder of data sets.
        workers: threads that prepare batches ahead.

    Raises:
        Stopped: after SIGTERM or Ctrl-C; a checkpoint was saved.
        NonFiniteLoss: the loss of a step was NaN or infinite; the last checkpoint is from before it.
        OSError: a file could not be written; earlier checkpoints are unchanged.
    """
    processes = processes or Processes(0, 1, torch.device("cpu"))
    saving = saving or Saving()
    run = RunFolder(folder, saving.keep)
    if run.finished:
        run.check_resumable(config)
        return run.read_result()
    context = RunContext(processes, folder, data_root)
    if workers is not None:
        context = replace(context, workers=workers)
    # What cannot be built is refused before a folder is made.
    job = (task or find_task(config.task)).start(config, data, context)
    with _locked_by_first_process(folder, processes):
        if RunFolder(folder).finished:  # by the process that held the lock before
            return run.read_result()
        step, lines = _begin(run, job)
        try:
            with deterministic_algorithms(processes.device, getattr(config, "deterministic", True)):
                return _run(job, run, saving, hooks if processes.first else (), step, lines)
        except Stopped:
            raise
        except Exception as error:
            run.keep_traceback(error, processes.rank)
            raise


@contextmanager
def _locked_by_first_process(folder: Path, processes: Processes) -> Iterator[None]:
    """Lock the folder in the first process; if that fails, raise in all processes."""
    with ExitStack() as stack:
        problem: Exception | None = None
        if processes.first:
            try:
                stack.enter_context(folder_lock(folder))
            except (FolderInUse, OSError) as error:
                problem = error
        (failed,) = processes.any(problem is not None)
        if failed:
            raise problem or FolderInUse(f"{folder} could not be locked by the first process")
        yield


def _run(
    job: Job, run: RunFolder, saving: Saving, hooks: Sequence[Hook], step: int, lines: list[dict[str, Any]]
) -> dict[str, Any]:
    config, processes = job.config, job.processes
    schedule = CheckpointSchedule(run, job, saving)
    try:
        for hook in hooks:
            hook.start(config, run.path, step)
        with stop_on_signals() as stop:
            started = time.monotonic()
            if step == 0:
                job.before_first_step()
            while step < config.total_steps:
                for batch in job.batches(step // config.steps_per_epoch, step % config.steps_per_epoch):
                    job.step(batch, step)
                    step += 1
                    for hook in hooks:
                        hook.step(step)
                    if step % config.steps_per_epoch == 0:
                        metrics = job.finish_epoch(step // config.steps_per_epoch, step)
                        metrics["seconds"] = round(time.monotonic() - started, 3)
                        started = time.monotonic()
                        lines.append(metrics)
                        if processes.first:
                            run.append_metrics(metrics)
                        for hook in hooks:
                            hook.epoch(metrics)
                    schedule.after_step(step, lines, stop.requested)
        result = _result(config, lines) | job.conclude(run.path)
        if processes.first:
            run.write_metrics(lines)
            run.finish(result, job.weights())
        processes.wait()
        # As written by the first process, in all processes.
        result = run.read_result()
        for hook in hooks:
            hook.finish(result)
        return result
    except NonFiniteLoss as error:
        raise NonFiniteLoss(f"{error}; {schedule.latest_checkpoint()}") from error
    finally:
        for hook in hooks:
            hook.close()


def _begin(run: RunFolder, job: Job) -> tuple[int, list[dict[str, Any]]]:
    """Open the folder and restore the newest checkpoint; returns the finished steps and the epochs' metrics."""
    processes = job.processes
    if processes.first:
        run.begin(job.config, processes)
        job.keep(run.path)
    processes.wait()
    checkpoint = run.checkpoints.latest()
    step, lines = 0, list[dict[str, Any]]()
    if checkpoint is not None:
        step, lines = checkpoint.step, checkpoint.metrics
        try:
            job.restore(checkpoint.state)
        except ValueError as error:
            raise ValueError(f"the checkpoint of step {step} cannot be used: {error}") from error
    processes.wait()
    if processes.first:
        # The epochs of the restored weights, whatever was written to the file since.
        run.write_metrics(lines)
    return step, lines


def _result(config: RunConfig, metrics: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The content of result.json without that of the job."""
    headline, figures = config.figures[0], result_figures(config.figures, metrics, config.average_last)
    value = figures.get(headline.name, math.nan)
    if not math.isfinite(value):
        raise ValueError(f"{headline.title} must be finite at the end of a run, got {value}: the run has no result")
    return figures | {
        "epochs": config.epochs,
        "average_last": config.average_last,
        "scale": config.scale,
        "evaluated_on": config.evaluated_on,
        "seconds": sum(line["seconds"] for line in metrics),
    }
