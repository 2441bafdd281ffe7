"""fastai: a callback that trains a Learner with ISDA and restores its loss function afterwards."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from isda.integrations.common import CriterionReplacement, import_library
from isda.losses import AugmentedLoss

__all__ = ["ISDACallback"]

_Callback: Any = import_library("fastai.callback.core", "fastai").Callback

_BEFORE_MIXUP = -1
"""The order of this callback: before MixUp (0), which then mixes its loss function."""


class ISDACallback(_Callback):
    """Replaces the CrossEntropyLossFlat of a Learner by the ISDALoss of its model during training.

    Validation, predictions and ``learn.lr_find()`` use the original loss function, with its ``activation`` and
    ``decodes``, and do not change the statistics. A BCEWithLogitsLossFlat becomes an ISDABCELoss. The strength grows
    over the optimiser steps of a fit, GradientAccumulation included; the statistics continue from fit to fit. The
    callback is ``learn.isda``.

    Args:
        lambda_0: strength at the end of a fit.
        total_steps: T; None for the steps of the fit.
        classifier: the last layer of the model or its name, if it cannot be found by convention.
        **settings: for ISDALoss; class weights, ignore_index, reduction and label smoothing are the loss function's.

    Attributes:
        criterion: the ISDALoss of the last fit; None before the first.

    Example:
        >>> import torch
        >>> from fastai.callback.schedule import Learner
        >>> from fastai.data.core import DataLoaders
        >>> from fastai.losses import CrossEntropyLossFlat
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> data = DataLoader(TensorDataset(torch.randn(12, 4), torch.arange(12) % 3), batch_size=4)
        >>> learn = Learner(DataLoaders(data, data), nn.Linear(4, 3), CrossEntropyLossFlat(), cbs=ISDACallback(0.5))
        >>> with learn.no_bar(), learn.no_logging():
        ...     learn.fit(2)
        >>> learn.isda.criterion.covariance.count, learn.isda.criterion.strength
        (tensor([8, 8, 8]), 0.5)
    """

    order, run_valid = _BEFORE_MIXUP, False

    def __init__(
        self,
        lambda_0: float = 0.5,
        total_steps: int | None = None,
        classifier: nn.Module | str | None = None,
        **settings: Any,
    ) -> None:
        self._replacement = CriterionReplacement(lambda_0, total_steps, classifier, settings)
        self._plain: Any = None
        self._steps = 0

    @property
    def criterion(self) -> AugmentedLoss | None:
        """The criterion of the last fit, with its statistics; None before the first."""
        return self._replacement.criterion

    def before_fit(self) -> None:
        """Restore the loss function after a fit that failed; do not run in ``lr_find``."""
        self.after_fit()
        self.run = not hasattr(self.learn, "lr_finder")

    def before_train(self) -> None:
        """Attach when the first epoch begins. (``before_fit`` is called by validation as well.)"""
        if self._plain is not None:
            return
        learn = self.learn
        criterion = self._replacement.begin(
            getattr(learn.loss_func, "func", learn.loss_func), learn.model, max(self._steps_of(learn.n_epoch), 1)
        )
        self._steps = self._steps_of(learn.epoch)  # above 0 where start_epoch resumes
        criterion.set_step(self._steps)
        self._plain, learn.loss_func = learn.loss_func, _LearnerLoss(learn.loss_func, criterion, learn)

    def after_step(self) -> None:
        """Set the step of the optimiser; not called for batches whose gradients are only accumulated."""
        self._steps += 1
        if self.criterion is not None:
            self.criterion.set_step(self._steps)

    def after_fit(self) -> None:
        """Restore the learner's loss function; the statistics stay with the callback."""
        if self._plain is not None:
            self.learn.loss_func, self._plain = self._plain, None
            self._replacement.end()

    def state_dict(self) -> dict[str, Any]:
        """Statistics and step, which ``learn.save`` does not save."""
        return self._replacement.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Use these statistics in the next fit."""
        self._replacement.load_state_dict(state_dict)

    def _steps_of(self, epochs: int) -> int:
        """Optimiser steps of the first epochs of a fit."""
        loader = self.learn.dls.train
        accumulation = getattr(self.learn, "gradient_accumulation", None)
        if accumulation is None:
            return epochs * len(loader)
        steps = samples = 0
        for size in _batch_sizes(loader) * epochs:
            samples += size
            if samples >= accumulation.n_acc:
                steps, samples = steps + 1, 0
        return steps


class _LearnerLoss:
    """The loss function of a learner during a fit: the criterion in training, otherwise the learner's own."""

    def __init__(self, plain: Any, criterion: AugmentedLoss, learn: Any) -> None:
        self.plain, self.criterion, self.learn = plain, criterion, learn

    def __call__(self, pred: Tensor, targ: Tensor, **settings: Any) -> Tensor:
        if not self.learn.training:
            return self.plain(pred, targ, **settings)
        logits, targets = pred.as_subclass(Tensor), targ.as_subclass(Tensor)
        if logits.ndim > 2 and getattr(self.plain, "axis", 1) == -1:
            logits, targets = logits.flatten(0, -2), targets.flatten()
        self.criterion.reduction = self.plain.reduction
        return self.criterion(logits, targets)

    @property
    def reduction(self) -> str:
        return self.plain.reduction

    @reduction.setter
    def reduction(self, value: str) -> None:  # set by MixUp
        self.plain.reduction = value

    def __getattr__(self, name: str) -> Any:
        """``activation``, ``decodes`` and other attributes of the learner's loss function."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.plain, name)


def _batch_sizes(loader: Any) -> list[int]:
    """The sizes of the batches of an epoch."""
    size = getattr(loader, "bs", None) or loader.batch_size
    sizes, left = [size] * len(loader), len(loader.dataset) % size
    if left and not loader.drop_last:
        sizes[-1] = left
    return sizes
