"""skorch: a NeuralNetClassifier whose criterion is attached to its module."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from skorch import NeuralNetClassifier
from torch import Tensor, nn

from isda.criterion import AugmentedLoss
from isda.integrations.common import measures
from isda.loss import ISDALoss


class ISDANeuralNetClassifier(NeuralNetClassifier):
    """NeuralNetClassifier with criterion=ISDALoss, attached to the module.

    The module returns logits; ``predict_proba`` gives probabilities. Settings of the criterion are parameters as
    elsewhere in skorch (``criterion__lambda_0=0.5``), so grid searches find them. ``save_params(f_criterion=...)``,
    checkpoints and pickles keep statistics and step. The history has the strength and the mean variance of the margins
    at the end of each epoch as ``isda_strength`` and ``isda_margin_variance``.

    Args:
        module: see NeuralNetClassifier; if its last layer is not found, name it: ``criterion__classifier="output"``.
        *args: see NeuralNetClassifier.
        criterion: ISDALoss or ExplicitLoss; any other is treated as NeuralNetClassifier does.
        **kwargs: see NeuralNetClassifier, and ISDALoss for ``criterion__lambda_0``, ``criterion__covariance``, ...;
            ``criterion__total_steps`` is max_epochs times the batches of an epoch by default.

    Example:
        >>> import numpy as np
        >>> X, y = np.random.default_rng(0).normal(size=(60, 4)).astype("float32"), np.arange(60) % 3
        >>> settings = {"max_epochs": 2, "batch_size": 8, "verbose": 0}
        >>> net = ISDANeuralNetClassifier(nn.Linear(4, 3), criterion__lambda_0=0.5, **settings)
        >>> net.fit(X, y).predict_proba(X).shape
        (60, 3)
        >>> net.criterion_.total_steps, net.criterion_.strength          # a fifth of the data is for validation
        (12, 0.5)
    """

    def __init__(self, module: Any, *args: Any, criterion: Any = ISDALoss, **kwargs: Any) -> None:
        super().__init__(module, *args, criterion=criterion, **kwargs)

    def initialize_criterion(self) -> ISDANeuralNetClassifier:
        """Attach the criterion to the initialised module."""
        if not (isinstance(self.criterion, type) and issubclass(self.criterion, AugmentedLoss)):
            return super().initialize_criterion()
        self.criterion_ = self.criterion.attach(self.module_, **self.get_params_for("criterion"))
        return self

    def run_single_epoch(self, iterator: Any, training: bool, *args: Any, **kwargs: Any) -> None:
        """Run an epoch; one of training knows T, and adds to the history."""
        augmented = training and isinstance(self.criterion_, AugmentedLoss)
        if augmented and self.get_params_for("criterion").get("total_steps") is None:
            self.criterion_.total_steps = self.max_epochs * len(iterator)
        super().run_single_epoch(iterator, training, *args, **kwargs)
        if augmented:
            for name, value in measures(self.criterion_).items():
                self.history.record(name, float(value))

    def torch_compile(self, module: nn.Module, name: str) -> nn.Module:
        """Compile the module; the criterion looks at its passes outside of graphs."""
        return module if isinstance(module, AugmentedLoss) else super().torch_compile(module, name)

    def _get_predict_nonlinearity(self) -> Callable[[Tensor], Tensor]:
        if self.predict_nonlinearity == "auto" and isinstance(self.criterion_, ISDALoss):
            return partial(torch.softmax, dim=-1)
        return super()._get_predict_nonlinearity()
