"""The training loop: one run from its configuration to its result, through any number of interruptions.

All randomness of step t is a function of (seed, t, process): nothing random has to be saved, and a resumed run makes
the very numbers of one that was never interrupted.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from isda import networks
from isda.data import DataSet
from isda.train.config import Config
from isda.train.hooks import Hook
from isda.train.interruptions import NonFiniteLoss, Stopped, stop_on_signals
from isda.train.normalisation import WHITENING_FILE, whitening_for
from isda.train.processes import Processes
from isda.train.run_folder import RunFolder, check_resumable
from isda.train.trainer import Trainer

__all__ = ["Saving", "train"]

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


def train(
    config: Config,
    data: DataSet,
    folder: Path,
    *,
    processes: Processes | None = None,
    saving: Saving | None = None,
    hooks: Sequence[Hook] = (),
    network: networks.Network | None = None,
    data_root: Path | None = None,
) -> dict[str, Any]:
    """Train a network, or go on with a run that was interrupted; returns the content of result.json.

    Args:
        config: what to do, see `isda.train.resolve`.
        data: the data set that the configuration names.
        folder: the run folder; a run that is in it already is continued.
        processes: who trains together; this process alone on the CPU by default.
        saving: when to write checkpoints.
        hooks: called as the run goes on, in the first process.
        network: instead of the one that the configuration names, e.g. with pretrained weights.
        data_root: the folder of data sets, where a whitening of the images is kept for other runs.

    Raises:
        Stopped: SIGTERM or Ctrl-C came; a checkpoint was saved.
        NonFiniteLoss: names the step; the last checkpoint is from before it.
        OSError: something could not be written; what was there before still is.
    """
    processes = processes or Processes(0, 1, torch.device("cpu"))
    saving = saving or Saving()
    hooks = hooks if processes.first else ()
    run = RunFolder(folder, saving.keep)
    if run.finished:
        check_resumable(run, config)
        return run.read_result()
    trainer = Trainer(config, data, processes, network, whitening_for(config, data, run.path, processes, data_root))
    step = _begin(run, trainer)
    saver = _Saver(run, trainer, saving)
    try:
        for hook in hooks:
            hook.start(config, folder, step)
        with stop_on_signals() as stop:
            started = time.monotonic()
            while step < config.total_steps:
                for batch in trainer.batches.epoch(step // config.steps_per_epoch, start=step % config.steps_per_epoch):
                    trainer.step(batch, step)
                    step += 1
                    for hook in hooks:
                        hook.step(step)
                    if step % config.steps_per_epoch == 0:
                        metrics = trainer.finish_epoch(step // config.steps_per_epoch, step)
                        metrics["seconds"] = round(time.monotonic() - started, 3)
                        started = time.monotonic()
                        if processes.first:
                            run.append_metrics(metrics)
                        for hook in hooks:
                            hook.epoch(metrics)
                    saver.after_step(step, stop.requested)
        result = _result(config, run)
        if processes.first:
            run.finish(result, trainer.evaluated.state_dict())
        processes.wait()
        for hook in hooks:
            hook.finish(result)
        return result
    except NonFiniteLoss as error:
        raise NonFiniteLoss(f"{error}; {saver.last_good()}") from error
    finally:
        for hook in hooks:
            hook.close()


def _begin(run: RunFolder, trainer: Trainer) -> int:
    """Open the run folder, restore the newest intact checkpoint, and return how many steps are done."""
    if trainer.processes.first:
        run.begin(trainer.config, trainer.processes)
        run.checkpoints.tidy()
        if trainer.whiten is not None and not (run.path / WHITENING_FILE).exists():
            trainer.whiten.save(run.path / WHITENING_FILE)
    trainer.processes.wait()
    checkpoint, complaints = run.checkpoints.load_latest()
    step = 0
    if checkpoint is not None:
        trainer.restore(checkpoint)
        step = checkpoint.step
    trainer.processes.wait()
    if trainer.processes.first:
        for complaint in complaints:
            run.complain(complaint)
        run.checkpoints.discard_after(step)
        run.rewind_metrics(step)
    return step


class _Saver:
    """Decides after each step whether to save and whether to stop."""

    def __init__(self, run: RunFolder, trainer: Trainer, saving: Saving) -> None:
        self.run, self.trainer, self.saving = run, trainer, saving
        self.last = time.monotonic()

    def after_step(self, step: int, stop: str | None) -> None:
        """Save if it is time; raise Stopped if a signal came and there are steps left."""
        processes, total = self.trainer.processes, self.trainer.config.total_steps
        due, stopping = self._elapsed(), stop is not None
        if processes.world > 1:
            due, stopping = processes.any(due, stopping) if step % AGREE_EVERY == 0 or step == total else (False, False)
        counted = self.saving.steps is not None and step % self.saving.steps == 0
        if due or stopping or counted:
            self.save(step)
        if stopping and step < total:
            raise Stopped(f"stopped by {stop or 'a signal'} after step {step} of {total}, which is saved")

    def save(self, step: int) -> None:
        """Write a checkpoint: the first process does, and the others wait for it."""
        checkpoint = self.trainer.checkpoint(step)
        if self.trainer.processes.first:
            self.run.checkpoints.save(checkpoint)
        self.trainer.processes.wait()
        self.last = time.monotonic()

    def last_good(self) -> str:
        """Where one could go on from."""
        latest = self.run.checkpoints.latest_step()
        return "there is no checkpoint from before it" if latest is None else f"the checkpoint of step {latest} is kept"

    def _elapsed(self) -> bool:
        return time.monotonic() - self.last > 60 * self.saving.minutes


def _result(config: Config, run: RunFolder) -> dict[str, Any]:
    """The figures that tables report: the error is the mean over the last epochs, as in the paper."""
    metrics = run.read_metrics()
    if len(metrics) != config.epochs:
        raise ValueError(f"{run.metrics_file} holds {len(metrics)} of {config.epochs} epochs; it was changed meanwhile")
    last = metrics[-config.average_last :]
    result: dict[str, Any] = {
        "error": statistics.fmean(line["test/error"] for line in last),
        "error_last": metrics[-1]["test/error"],
    }
    result |= {
        name: statistics.fmean(line[f"test/{name}"] for line in last)
        for name in ("error_top5", "nll", "calibration")
        if f"test/{name}" in metrics[-1]
    }
    return result | {
        "train_loss": metrics[-1]["train/loss"],
        "epochs": config.epochs,
        "average_last": config.average_last,
        "scale": config.scale,
        "evaluated_on": config.evaluated_on,
        "seconds": sum(line["seconds"] for line in metrics),
    }
