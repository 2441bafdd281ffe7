"""The bounds over a run, at each of its checkpoints, and of a finished network at strengths of one's choice."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isda import seeds
from isda.analysis.observing import Observed
from isda.analysis.run_data import run_data
from isda.analysis.tightness.bounds import Bounds, measure_bounds
from isda.classification.batches import Batch, evaluation_batches, ready
from isda.classification.config import Config
from isda.classification.task import Classification
from isda.classification.trained import classifier_of
from isda.covariance import CovarianceModel, FullCovariance
from isda.data import DataSet
from isda.engine.folder.finished import made_as_described
from isda.engine.folder.formats import read_config
from isda.engine.folder.run_folder import RunFolder
from isda.engine.processes import Processes
from isda.engine.task import Place
from isda.engine.trainer import Trainer
from isda.errors import of_type
from isda.losses import SemanticLoss
from isda.networks import Network

__all__ = ["Moment", "bounds_at", "bounds_over_training"]

STRENGTH = 0.5
"""Lambda_0 for runs that have none of their own: the paper's recommendation."""


@dataclass(frozen=True)
class Moment:
    """One checkpoint."""

    step: int
    epoch: float
    own: bool
    """Whether the covariances are those that the run has estimated by then; else those of its features now."""
    bounds: Bounds


def bounds_at(observed: Observed, strengths: Sequence[float], draws: int = 1000, seed: int = 0) -> list[Bounds]:
    """The bounds of a finished network at some strengths, with the covariances of its final features."""
    logits = observed.logits(observed.features)
    return [
        measure_bounds(logits, observed.labels, observed.weight, observed.covariance, strength, draws, seed)
        for strength in strengths
    ]


def bounds_over_training(
    folder: Path,
    data_root: Path | None = None,
    device: torch.device | str = "cpu",
    *,
    most: int = 500,
    lambda_0: float | None = None,
    draws: int = 1000,
    seed: int = 0,
) -> Iterator[Moment]:
    """The bounds at each checkpoint of a run, finished or not, the oldest first.

    The network sees training images as they are, with the figures of batch norm by then. An ISDA run has the
    covariances and the strength that it trained with; others have those of their features and lambda_0 t / T.

    Args:
        folder: of a run of a classifier, best one with many checkpoints (`isda train --checkpoint-steps --keep`).
        data_root: where data sets are.
        device: where the network computes.
        most: images that are looked at.
        lambda_0: strength at the end of training, instead of the run's own or of 0.5.
        draws: per image and checkpoint.
        seed: of the draws, and of which images.

    Raises:
        ValueError: no run of a classifier, no checkpoint, or its data set has changed.
    """
    run = RunFolder(folder)
    task, config, data = _opened(run, data_root)
    place = torch.device(device)
    with made_as_described(run):
        started = task.start(config, data, Place(Processes(0, 1, place), folder, data_root))
    job = of_type(started, Trainer)  # type: ignore[type-abstract]
    indices = task.training(config, data)
    chosen = indices[torch.randperm(len(indices), generator=seeds.generator(seed))[:most]]
    pipeline = task.evaluation_pipeline(config, folder)
    found = False
    for checkpoint in run.checkpoints.intact(config.identity):
        found = True
        job.restore(checkpoint.state)
        batches = evaluation_batches(data.x_train, data.y_train, chosen, pipeline, place)
        seen = _seen(job.network, batches, config)
        model, strength, own = _of_run(job.method, seen, data.num_classes)
        share = checkpoint.step / config.total_steps
        if lambda_0 is not None or strength is None:
            strength = (STRENGTH if lambda_0 is None else lambda_0) * share
        bounds = measure_bounds(seen.logits, seen.labels, seen.weight, model, strength, draws, seed)
        yield Moment(checkpoint.step, share * config.epochs, own, bounds)
    if not found:
        raise ValueError(f"the run in {folder} has no checkpoint that can be read")


def _opened(run: RunFolder, data_root: Path | None) -> tuple[Classification, Config, DataSet]:
    if not run.started:
        raise ValueError(f"no run in {run.path}: a run folder holds {run.config_file.name}")
    task, config = classifier_of(run, read_config(run.config_file))
    return task, config, run_data(config, data_root)


class _Seen(NamedTuple):
    """What a network makes of some images, float64."""

    features: Tensor
    labels: Tensor
    logits: Tensor
    weight: Tensor


@torch.no_grad()
def _seen(network: nn.Module, batches: Iterable[Batch], config: Config) -> _Seen:
    network = of_type(network, Network).eval()
    parts = [
        (network.features(ready(batch.images, config.dtype, config.channels_last)).double().cpu(), batch.targets.cpu())
        for batch in batches
    ]
    features, labels = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    head = network.classifier
    weight = head.weight.double().cpu()
    bias = None if head.bias is None else head.bias.double().cpu()
    return _Seen(features, labels, F.linear(features, weight, bias), weight)


def _of_run(method: nn.Module, seen: _Seen, classes: int) -> tuple[CovarianceModel, float | None, bool]:
    """Covariances and strength of a run, and whether the covariances are its own; no strength if it has none."""
    criterion = next((part for part in method.modules() if isinstance(part, SemanticLoss)), None)
    if criterion is not None:
        return copy.deepcopy(criterion.covariance).cpu().double(), criterion.strength, True
    model = FullCovariance(classes, seen.features.shape[1], dtype=torch.float64)
    model.update(seen.features, seen.labels)
    return model, None, False
