"""skorch: a NeuralNetClassifier whose criterion is attached to its module."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from isda.integrations.common import AUTO, HeldOutLogits, import_library, steps_for, warn_of_no_strength
from isda.losses import AugmentedLoss, ExplicitLoss, ISDALoss

__all__ = ["ISDANeuralNetClassifier"]

_NeuralNetClassifier: Any = import_library("skorch", "skorch").NeuralNetClassifier
_to_tensor: Any = import_library("skorch.utils", "skorch").to_tensor


class ISDANeuralNetClassifier(_NeuralNetClassifier):
    """NeuralNetClassifier with criterion=ISDALoss: attached to the module, T from max_epochs and the data.

    The module returns logits; ``predict_proba`` gives probabilities. Settings of the criterion are parameters as
    elsewhere in skorch (``criterion__lambda_0=0.5``), so grid searches find them. ``save_params(f_criterion=...)``,
    checkpoints and pickles keep the statistics and the step. The history has the strength at the end of each epoch as
    ``isda_strength``.

    Args:
        module: see NeuralNetClassifier; if its last layer cannot be found by convention, name it:
            ``criterion__classifier="output"``.
        *args: see NeuralNetClassifier.
        criterion: ISDALoss or ExplicitLoss; any other is treated as NeuralNetClassifier does.
        **kwargs: see NeuralNetClassifier, and ISDALoss for ``criterion__lambda_0``, ``criterion__covariance``,
            ``criterion__bound``, ``criterion__rank``, ``criterion__decay``, ``criterion__label_smoothing``,
            ``criterion__max_ratio``, ``criterion__schedule``, ... ``criterion__total_steps`` is max_epochs times the
            batches of an epoch by default; training beyond that has the strength lambda_0.
            ``criterion__lambda_0="auto"`` is set by the validation of each epoch (``train_split``).

    Example:
        >>> import numpy as np
        >>> X, y = np.random.default_rng(0).normal(size=(60, 4)).astype("float32"), np.arange(60) % 3
        >>> settings = {"max_epochs": 2, "batch_size": 8, "verbose": 0}
        >>> net = ISDANeuralNetClassifier(nn.Linear(4, 3), criterion__lambda_0=0.5, **settings)
        >>> net.fit(X, y).predict_proba(X).sum(axis=1).round(5).tolist() == [1.0] * 60
        True
        >>> net.criterion_.total_steps, net.criterion_.strength          # a fifth of the data is for validation
        (12, 0.5)
    """

    _held_out: HeldOutLogits | None = None

    def __init__(self, module: Any, *args: Any, criterion: Any = ISDALoss, **kwargs: Any) -> None:
        super().__init__(module, *args, criterion=criterion, **kwargs)

    def initialize_criterion(self) -> ISDANeuralNetClassifier:
        """Attach the criterion to the initialised module."""
        if isinstance(self.criterion, type) and issubclass(self.criterion, AugmentedLoss):
            settings = self.get_params_for("criterion")
            if settings.get("total_steps") is None:
                # One epoch of one batch; a training epoch sets the number that it has.
                settings["total_steps"] = steps_for(settings.get("lambda_0", 0.5), settings.get("schedule"), 1)
            self.criterion_ = self.criterion.attach(self.module_, **settings)
            return self
        return super().initialize_criterion()

    def run_single_epoch(self, iterator: Any, training: bool, *args: Any, **kwargs: Any) -> None:
        """Run an epoch; set T before a training epoch, and the strength of lambda_0="auto" after a validation epoch."""
        criterion: Any = self.criterion_
        if not isinstance(criterion, AugmentedLoss):
            super().run_single_epoch(iterator, training, *args, **kwargs)
        elif training:
            planned = self._set_total_steps(criterion, iterator)
            super().run_single_epoch(iterator, training, *args, **kwargs)
            self.history.record("isda_strength", criterion.strength)
            if len(self.history) == 1 and not criterion.schedule.automatic:
                warn_of_no_strength(criterion, "", planned)
        else:
            self._held_out = None if iterator is None else HeldOutLogits.of(criterion)
            try:
                super().run_single_epoch(iterator, training, *args, **kwargs)
                if self._held_out is not None:
                    self._held_out.match()
            finally:
                self._held_out = None

    def get_loss(self, y_pred: Any, y_true: Any, *args: Any, **kwargs: Any) -> Tensor:
        """The loss of a batch; the logits of a validation epoch are also collected for lambda_0="auto"."""
        if self._held_out is not None:
            self._held_out.add(y_pred, _to_tensor(y_true, device=self.device))
        loss: Tensor = super().get_loss(y_pred, y_true, *args, **kwargs)
        return loss

    def _set_total_steps(self, criterion: AugmentedLoss, iterator: Any) -> float:
        """Set T unless it is given; returns the steps of the whole training, where they are known."""
        settings = self.get_params_for("criterion")
        if settings.get("lambda_0") == AUTO and not self.train_split:
            raise ValueError("lambda_0='auto' needs an evaluation: train_split must be a split of the data, got None")
        try:
            planned = self.max_epochs * len(iterator)
        except TypeError:
            if settings.get("total_steps") is None and criterion.total_steps is not None:
                raise ValueError(
                    "criterion__total_steps must be given if the number of batches is not known, got none"
                ) from None
            return math.inf
        if settings.get("total_steps") is None and criterion.total_steps is not None:
            criterion.total_steps = planned
        return planned

    def torch_compile(self, module: nn.Module, name: str) -> nn.Module:
        """Compile modules other than the criterion, which runs outside of graphs."""
        return module if isinstance(module, AugmentedLoss) else super().torch_compile(module, name)

    def _get_predict_nonlinearity(self) -> Callable[[Tensor], Tensor]:
        softmax = partial(torch.softmax, dim=-1)
        auto = self.predict_nonlinearity == "auto" and isinstance(self.criterion_, (ISDALoss, ExplicitLoss))
        return softmax if auto else super()._get_predict_nonlinearity()
