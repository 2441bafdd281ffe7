"""fastai: a callback that trains a Learner with ISDA and restores its loss function afterwards."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from isda.integrations.common import CriterionReplacement, import_library
from isda.losses import AugmentedLoss

_Callback: Any = import_library("fastai.callback.core", "fastai").Callback

_BEFORE_MIXUP = -1
"""The order of a callback whose loss function MixUp, which has 0, finds and mixes."""


class ISDACallback(_Callback):
    """While a Learner trains, its CrossEntropyLossFlat is the ISDALoss of its model.

    Validation, predictions and ``learn.lr_find()`` have the loss function that the learner was made with, its
    ``activation`` and ``decodes`` included, and leave the statistics alone. A BCEWithLogitsLossFlat becomes an
    ISDABCELoss. The strength grows over the optimiser steps of a fit, GradientAccumulation counted; the statistics go
    on from fit to fit. The callback is ``learn.isda``.

    Args:
        lambda_0: strength at the end of a fit.
        total_steps: T; None for the steps of the fit.
        classifier: the last layer of the model or its name, where it cannot be found by convention.
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
        self._adoption = CriterionReplacement(lambda_0, total_steps, classifier, settings)
        self._plain: Any = None
        self._steps = 0

    @property
    def criterion(self) -> AugmentedLoss | None:
        """The criterion of the last fit, with its statistics; None before the first."""
        return self._adoption.criterion

    def before_fit(self) -> None:
        """Stay away from trials of learning rates; tidy up after a fit that ended in an error."""
        self._leave()
        self.run = not hasattr(self.learn, "lr_finder")

    def before_train(self) -> None:
        """Attach when the first epoch begins. (``before_fit`` is no sign of training: validation has it as well.)"""
        if self._plain is not None:
            return
        learn = self.learn
        criterion = self._adoption.begin(
            getattr(learn.loss_func, "func", learn.loss_func), learn.model, max(self._steps_of(learn.n_epoch), 1)
        )
        self._steps = self._steps_of(learn.epoch)  # above 0 where start_epoch resumes
        criterion.set_step(self._steps)
        self._plain, learn.loss_func = learn.loss_func, _LearnerLoss(learn.loss_func, criterion, learn)

    def after_step(self) -> None:
        """Follow the optimiser; batches whose gradients are only accumulated do not come here."""
        self._steps += 1
        if self.criterion is not None:
            self.criterion.set_step(self._steps)

    def after_fit(self) -> None:
        """Leave the learner as it was; the statistics stay with the callback."""
        self._leave()

    def state_dict(self) -> dict[str, Any]:
        """Statistics and step, which ``learn.save`` does not know of."""
        return self._adoption.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Let the next fit go on from these statistics."""
        self._adoption.load_state_dict(state_dict)

    def _leave(self) -> None:
        if self._plain is not None:
            self.learn.loss_func, self._plain = self._plain, None
            self._adoption.end()

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
    """The loss function of a learner that trains: the criterion in training, otherwise the learner's own."""

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
    def reduction(self, value: str) -> None:  # MixUp asks for the losses of the samples
        self.plain.reduction = value

    def __getattr__(self, name: str) -> Any:
        """``activation``, ``decodes`` and whatever else the learner's loss function has."""
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
