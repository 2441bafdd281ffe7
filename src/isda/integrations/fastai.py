"""fastai: a callback that trains a Learner with ISDA and restores its loss function afterwards."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from isda.covariance import CovarianceModel
from isda.integrations.common import CriterionReplacement, HeldOutLogits, given, import_library, warn_of_no_strength
from isda.losses import AugmentedLoss

__all__ = ["ISDACallback"]

_Callback: Any = import_library("fastai.callback.core", "fastai").Callback
_MixHandler: Any = import_library("fastai.callback.mixup", "fastai").MixHandler

_BEFORE_MIXUP = -1
"""The order of this callback: before MixUp (0), which then mixes its loss function."""
_EVALUATE = "the learner has to validate in every epoch"


class ISDACallback(_Callback):
    """Replaces the CrossEntropyLossFlat of a Learner by the ISDALoss of its model during training.

    Validation, predictions and ``learn.lr_find()`` use the original loss function, with its ``activation`` and
    ``decodes``, and do not change the statistics. A BCEWithLogitsLossFlat becomes an ISDABCELoss. The strength grows
    over the optimiser steps of a fit, GradientAccumulation included; the statistics continue from fit to fit. The
    callback is ``learn.isda``.

    Args:
        lambda_0: strength at the end of a fit; "auto" for one that the validation of each epoch sets.
        total_steps: T; None for the steps of the fit.
        classifier: the last layer of the model or its name, if it cannot be found by convention.
        schedule: "constant" for a strength of lambda_0 from the first step on.
        covariance: see ISDALoss, as all that follow; None for the default of ``ISDALoss.attach``.
        bound: "jensen" or "tilted".
        rank: of covariance="low_rank".
        decay: how the statistics forget old features.
        tilt_steps: of bound="tilted".
        max_ratio: upper limit of the variance term.
        validate: whether labels and features are checked.
        **settings: others of ISDALoss; class weights, ignore_index, reduction and label smoothing are the loss
            function's.

    Attributes:
        criterion: the ISDALoss of the last fit; None before the first.
        strengths: the strength of each training batch of the last fit, as ``learn.recorder.lrs`` has the rates.

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
        lambda_0: float | str = 0.5,
        total_steps: int | None = None,
        classifier: nn.Module | str | None = None,
        *,
        schedule: str | None = None,
        covariance: str | CovarianceModel | None = None,
        bound: str | None = None,
        rank: int | None = None,
        decay: float | None = None,
        tilt_steps: int | None = None,
        max_ratio: float | None = None,
        validate: bool | None = None,
        **settings: Any,
    ) -> None:
        settings |= given(
            covariance=covariance,
            bound=bound,
            rank=rank,
            decay=decay,
            tilt_steps=tilt_steps,
            max_ratio=max_ratio,
            validate=validate,
        )
        self._replacement = CriterionReplacement(lambda_0, total_steps, classifier, schedule, settings)
        self._plain: Any = None
        self._held_out: HeldOutLogits | None = None
        self._steps, self._checked = 0, False
        self.strengths: list[float] = []

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
        if self._replacement.automatic:
            _check_evaluation(learn)
        criterion = self._replacement.begin(
            getattr(learn.loss_func, "func", learn.loss_func), learn.model, max(self._steps_of(learn.n_epoch), 1)
        )
        self._steps = self._steps_of(learn.epoch)  # above 0 where start_epoch resumes
        criterion.set_step(self._steps)
        self._held_out, self._checked, self.strengths = HeldOutLogits.of(criterion), False, []
        self._plain = learn.loss_func
        learn.loss_func = _LearnerLoss(learn.loss_func, criterion, learn, self._held_out)

    def before_batch(self) -> None:
        """Record the strength."""
        if self.criterion is not None:
            self.strengths.append(self.criterion.strength)

    def after_step(self) -> None:
        """Set the step of the optimiser; not called for batches whose gradients are only accumulated."""
        self._steps += 1
        if self.criterion is not None:
            self.criterion.set_step(self._steps)

    def before_validate(self) -> None:
        """Start to collect held-out logits."""
        if self._held_out is not None:
            self._held_out.clear()

    def after_validate(self) -> None:
        """Set the strength of lambda_0="auto", if it was the validation of a fit."""
        if self._held_out is not None and self.learn.dl is self.learn.dls.valid:
            self._held_out.match()

    def after_epoch(self) -> None:
        """Warn after the first epoch of a fit if its strength is 0."""
        if self._plain is not None and self.criterion is not None and not self._checked:
            self._checked = True
            warn_of_no_strength(self.criterion, _EVALUATE, self._steps_of(self.learn.n_epoch))

    def after_fit(self) -> None:
        """Restore the learner's loss function; the statistics stay with the callback."""
        if self._plain is not None:
            self.learn.loss_func, self._plain, self._held_out = self._plain, None, None
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

    def __init__(self, plain: Any, criterion: AugmentedLoss, learn: Any, held_out: HeldOutLogits | None) -> None:
        self.plain, self.criterion, self.learn, self.held_out = plain, criterion, learn, held_out

    def __call__(self, pred: Tensor, targ: Tensor, **settings: Any) -> Tensor:
        logits, targets = pred.as_subclass(Tensor), targ.as_subclass(Tensor)
        tokens = logits.ndim > 2 and getattr(self.plain, "axis", 1) == -1
        if not self.learn.training:
            if self.held_out is not None:
                rows = (logits.flatten(0, -2), targets.flatten()) if tokens else (logits, targets)
                self.held_out.add(*rows)
            return self.plain(pred, targ, **settings)
        self.criterion.reduction = self.plain.reduction
        loss: Tensor = self.criterion(logits, targets)
        return loss.flatten() if tokens and loss.ndim else loss

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


def _check_evaluation(learn: Any) -> None:
    """Raise ValueError for a fit in which lambda_0="auto" cannot be matched."""
    if len(learn.dls.loaders) < 2 or not len(learn.dls.valid):
        raise ValueError("lambda_0='auto' needs an evaluation: pass DataLoaders with a validation set, got none")
    mixing = next((callback for callback in learn.cbs if isinstance(callback, _MixHandler)), None)
    if mixing is not None:
        raise ValueError(
            f"lambda_0 must be a number with {type(mixing).__name__}: 'auto' needs training inputs as they are"
        )


def _batch_sizes(loader: Any) -> list[int]:
    """The sizes of the batches of an epoch."""
    size = getattr(loader, "bs", None) or loader.batch_size
    sizes, left = [size] * len(loader), len(loader.dataset) % size
    if left and not loader.drop_last:
        sizes[-1] = left
    return sizes
