"""A small problem in a Learner of fastai, as the plain loop has it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import plain_training
import torch
from fastai.callback.progress import ProgressCallback
from fastai.data.core import DataLoaders
from fastai.data.load import DataLoader as FastaiLoader
from fastai.imports import noop
from fastai.learner import Learner
from fastai.losses import CrossEntropyLossFlat
from fastai.optimizer import OptimWrapper
from plain_training import MOMENTUM, RATE

EPOCHS, COUNT, BATCH, BATCHES = 3, 27, 4, 7
# fastai's Recorder takes no losses in float64.
network, samples, loader = (
    partial(made, dtype=torch.float32)
    for made in (plain_training.network, plain_training.samples, plain_training.loader)
)


class Items(list[Any]):
    """A data set of fastai, which can be asked for an empty one of its kind."""

    def new_empty(self) -> Items:
        return Items()


def batches(count: int, seed: int = 0) -> FastaiLoader:
    """Those of ``loader``, by fastai."""
    return FastaiLoader(Items(zip(*samples(count, seed), strict=True)), bs=BATCH, num_workers=0)


def learner(
    *callbacks: Any, loss: Any = None, folder: Path | None = None, data: Any = None, model: Any = None, **settings: Any
) -> Learner:
    """The training of the plain loop, as fastai is told of it."""
    data = batches(COUNT) if data is None else data
    optimiser = partial(OptimWrapper, opt=partial(torch.optim.SGD, momentum=MOMENTUM))
    made = Learner(
        DataLoaders(data, batches(11, seed=1), device="cpu"),
        model or network(),
        loss or CrossEntropyLossFlat(),
        opt_func=optimiser,
        lr=RATE,
        cbs=list(callbacks),
        path=folder,
        **settings,
    )
    made.logger = noop
    return made.remove_cb(ProgressCallback)
