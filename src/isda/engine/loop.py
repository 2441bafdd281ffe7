"""The training loop of one run, and when it writes checkpoints.

All randomness of step t is a function of (seed, t, rank), so a resumed run is bitwise equal to an uninterrupted one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from isda._utils.errors import is_package_error
from isda.engine.callbacks import Hook
from isda.engine.checkpoint import Checkpoint
from isda.engine.config import RunConfig, result_figures
from isda.engine.processes import NonFiniteLoss, Processes, Stopped, stop_on_signals
from isda.engine.run_folder import FolderInUse, RunFolder, folder_lock
from isda.engine.task import Job, RunContext, Task, find_task

# How many steps processes go on before they ask each other whether to save or stop: asking makes a GPU wait.
AGREE_EVERY = 16


@dataclass(frozen=True)
class Saving:
    """When checkpoints are written, and how many are kept."""

    minutes: float = 5.0
    """Save when this much time has passed since the last checkpoint."""
    steps: int | None = None
    """Save every so many steps as well."""
    keep: int = 2

    def __post_init__(self) -> None:
        if not self.minutes > 0:
            raise ValueError(f"minutes between checkpoints must be more than 0, got {self.minutes}")
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"steps between checkpoints must be at least 1, got {self.steps}")


class CheckpointSchedule:
    """Decides after each step whether to save and whether to stop."""

    def __init__(self, run: RunFolder, job: Job, saving: Saving) -> None:
        self.run, self.job, self.saving = run, job, saving
        self.last = time.monotonic()

    def after_step(self, step: int, metrics: list[dict[str, Any]], stop: str | None) -> None:
        """Save if it is time; raise Stopped if a signal came and there are steps left.

        Args:
            step: how many are done.
            metrics: the figures of the epochs until then.
            stop: the name of the signal, if one came.
        """
        processes, total = self.job.processes, self.job.config.total_steps
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
        """Write a checkpoint: the first process does, and the others wait for it."""
        self.job.check()
        state = self.job.state()
        if self.job.processes.first:
            self.run.checkpoints.save(Checkpoint(step, state, metrics, self.job.config.identity))
        self.job.processes.wait()
        self.last = time.monotonic()

    def last_good(self) -> str:
        """Where one could go on from."""
        latest = self.run.checkpoints.latest_step()
        return "there is no checkpoint from before it" if latest is None else f"the checkpoint of step {latest} is kept"

    def _elapsed(self) -> bool:
        return time.monotonic() - self.last > 60 * self.saving.minutes


# The training loop: one run from its configuration to its result, through any number of interruptions.
#
# All randomness of step t is a function of (seed, t, process): nothing random has to be saved, and a resumed run makes
# the very numbers of one that was never interrupted.


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
    """Make a run, or go on with one that was interrupted; returns the content of result.json.

    Args:
        config: what to do, from the task's `resolve`.
        data: from the task's `load`.
        folder: the run folder; a run that is in it already is continued.
        task: what the configuration is of; by default found by the name that it gives.
        processes: who trains together; this process alone on the CPU by default.
        saving: when to write checkpoints.
        hooks: called as the run goes on, in the first process.
        data_root: the folder of data sets.
        workers: threads that prepare batches ahead.

    Raises:
        Stopped: SIGTERM or Ctrl-C came; a checkpoint was saved.
        NonFiniteLoss: names the step; the last checkpoint is from before it.
        OSError: something could not be written; what was there before still is.
    """
    processes = processes or Processes(0, 1, torch.device("cpu"))
    saving = saving or Saving()
    run = RunFolder(folder, saving.keep)
    if run.finished:
        result = run.check_finished()
        run.check_resumable(config)
        return result
    place = RunContext(processes, folder, data_root)
    with _locked_by_first_process(folder, processes):
        if RunFolder(folder).finished:  # by whoever had the folder before
            return run.read_result()
        # What is refused here may be the folder of another run: nothing is written to it.
        with _traceback_written(run, processes, refusals=False):
            job = (task or find_task(config.task)).start(
                config, data, place if workers is None else replace(place, workers=workers)
            )
            step, lines = _begin(run, job)
        with _traceback_written(run, processes):
            return _run(job, run, saving, hooks if processes.first else (), step, lines)


@contextmanager
def _locked_by_first_process(folder: Path, processes: Processes) -> Iterator[None]:
    """The first process holds the folder for all; if it cannot, all of them raise."""
    with ExitStack() as held:
        problem: Exception | None = None
        if processes.first:
            try:
                held.enter_context(folder_lock(folder))
            except (FolderInUse, OSError) as error:
                problem = error
        (failed,) = processes.any(problem is not None)
        if failed:
            raise problem or FolderInUse(f"{folder} could not be held by the first process")
        yield


@contextmanager
def _traceback_written(run: RunFolder, processes: Processes, refusals: bool = True) -> Iterator[None]:
    """Write the traceback of an error to the run folder; of one that is a sentence of ours if ``refusals``."""
    try:
        yield
    except Stopped:
        raise
    except Exception as error:
        if refusals or not is_package_error(error):
            run.keep_traceback(error, processes.rank)
        raise


def _run(
    job: Job, run: RunFolder, saving: Saving, hooks: Sequence[Hook], step: int, lines: list[dict[str, Any]]
) -> dict[str, Any]:
    config, processes = job.config, job.processes
    saver = CheckpointSchedule(run, job, saving)
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
                    saver.after_step(step, lines, stop.requested)
        result = _result(config, lines) | job.conclude(run.path)
        if processes.first:
            run.write_metrics(lines)
            run.finish(result, job.weights())
        processes.wait()
        # In all processes alike: with what only the one that wrote it knows.
        result = run.read_result()
        for hook in hooks:
            hook.finish(result)
        return result
    except NonFiniteLoss as error:
        raise NonFiniteLoss(f"{error}; {saver.last_good()}") from error
    finally:
        for hook in hooks:
            hook.close()


def _begin(run: RunFolder, job: Job) -> tuple[int, list[dict[str, Any]]]:
    """Open the folder and restore the newest intact checkpoint: how many steps are done, and the epochs' figures."""
    processes = job.processes
    if processes.first:
        run.begin(job.config, processes)
        run.checkpoints.tidy()
        job.keep(run.path)
    processes.wait()
    checkpoint, complaints = run.checkpoints.load_latest(job.config.identity)
    step, lines = 0, list[dict[str, Any]]()
    if checkpoint is not None:
        step, lines = _restore(job, checkpoint), checkpoint.metrics
    processes.wait()
    if processes.first:
        for complaint in complaints:
            run.complain(complaint)
        run.checkpoints.discard_after(step)
        # Whatever happened to the file meanwhile: these are the epochs that the weights have seen.
        run.write_metrics(lines)
    return step, lines


def _restore(job: Job, checkpoint: Checkpoint) -> int:
    try:
        job.restore(checkpoint.state)
    except ValueError as error:
        raise ValueError(f"the checkpoint of step {checkpoint.step} cannot be used: {error}") from error
    return checkpoint.step


def _result(config: RunConfig, metrics: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures that tables report, and what they are of."""
    headline, figures = config.figures[0], result_figures(config.figures, metrics, config.average_last)
    value = figures.get(headline.name, math.nan)
    if not math.isfinite(value):
        raise ValueError(f"{headline.title} must be a finite number at the end of a run, got {value}: it has no result")
    return figures | {
        "epochs": config.epochs,
        "average_last": config.average_last,
        "scale": config.scale,
        "evaluated_on": config.evaluated_on,
        "seconds": sum(line["seconds"] for line in metrics),
    }
