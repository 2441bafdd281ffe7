"""skorch: a NeuralNetClassifier whose criterion is attached to its module."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from isda.integrations.common import import_library
from isda.losses import AugmentedLoss, ExplicitLoss, ISDALoss

__all__ = ["ISDANeuralNetClassifier"]

_NeuralNetClassifier: Any = import_library("skorch", "skorch").NeuralNetClassifier


class ISDANeuralNetClassifier(_NeuralNetClassifier):
    """NeuralNetClassifier with criterion=ISDALoss: attached to the module, T from max_epochs and the data.

    The module returns logits; ``predict_proba`` gives probabilities. Settings of the criterion are parameters as
    elsewhere in skorch (``criterion__lambda_0=0.5``), so grid searches find them. ``save_params(f_criterion=...)``,
    checkpoints and pickles keep the statistics and the step.

    Args:
        module: see NeuralNetClassifier; if its last layer cannot be found by convention, name it:
            ``criterion__classifier="output"``.
        *args: see NeuralNetClassifier.
        criterion: ISDALoss or ExplicitLoss; any other is treated as NeuralNetClassifier does.
        **kwargs: see NeuralNetClassifier. ``criterion__total_steps`` is max_epochs times the batches of an epoch
            by default; training beyond that has the strength lambda_0.

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

    def __init__(self, module: Any, *args: Any, criterion: Any = ISDALoss, **kwargs: Any) -> None:
        super().__init__(module, *args, criterion=criterion, **kwargs)

    def initialize_criterion(self) -> ISDANeuralNetClassifier:
        """Attach the criterion to the initialised module."""
        if isinstance(self.criterion, type) and issubclass(self.criterion, AugmentedLoss):
            self.criterion_ = self.criterion.attach(self.module_, **self.get_params_for("criterion"))
            return self
        return super().initialize_criterion()

    def run_single_epoch(self, iterator: Any, training: bool, *args: Any, **kwargs: Any) -> None:
        """Run an epoch; set T before a training epoch."""
        ours = training and isinstance(self.criterion_, AugmentedLoss)
        if ours and "total_steps" not in self.get_params_for("criterion"):
            try:
                batches = len(iterator)
            except TypeError:
                raise ValueError(
                    "criterion__total_steps must be given if the number of batches is not known, got none"
                ) from None
            self.criterion_.total_steps = self.max_epochs * batches
        super().run_single_epoch(iterator, training, *args, **kwargs)

    def torch_compile(self, module: nn.Module, name: str) -> nn.Module:
        """Compile modules other than the criterion, which runs outside of graphs."""
        return module if isinstance(module, AugmentedLoss) else super().torch_compile(module, name)

    def _get_predict_nonlinearity(self) -> Callable[[Tensor], Tensor]:
        softmax = partial(torch.softmax, dim=-1)
        auto = self.predict_nonlinearity == "auto" and isinstance(self.criterion_, (ISDALoss, ExplicitLoss))
        return softmax if auto else super()._get_predict_nonlinearity()
