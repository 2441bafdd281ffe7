"""Center loss as a method: the rate of its centres falls with the learning rate of the network."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from isda.classification.config import Config
from isda.classification.methods.classifier_input import ClassifierInput
from isda.classification.methods.loss_method import LossMethod
from isda.engine.recipe import learning_rate
from isda.losses import CenterLoss
from isda.networks import Network

__all__ = ["Center", "CenterOptions"]


@dataclass(frozen=True, kw_only=True)
class CenterOptions:
    """What may follow ``center:``."""

    weight: float = 0.003
    """Of the squared distances to the centres."""
    rate: float = 0.5
    """At which the centres follow the features, at the start."""


class Center(LossMethod):
    """`isda.losses.CenterLoss`, with rate_t = rate * lr_t / lr_0: the paper's 0.5 is an "initial" rate."""

    name = "center"
    Options = CenterOptions
    grid = {"weight": (0.0003, 0.001, 0.003, 0.01, 0.03)}  # noqa: RUF012, a class variable of the base

    criterion: CenterLoss
    step: Tensor
    rates: Tensor

    def __init__(self, options: CenterOptions, network: Network, config: Config) -> None:
        super().__init__(options, network, config)
        self.inputs = ClassifierInput(network.classifier)
        centres = self.criterion.centres
        rates = [options.rate * share for share in _shares(config)]
        # The step is counted, and its rate looked up, where the centres are: the host has nothing to wait for.
        self.register_buffer("step", torch.zeros(1, dtype=torch.int64, device=centres.device))
        self.register_buffer("rates", torch.tensor(rates, dtype=centres.dtype, device=centres.device), persistent=False)

    @classmethod
    def make_criterion(
        cls, options: CenterOptions, network: Network, config: Config, cross_entropy: nn.Module | None
    ) -> nn.Module:
        """The loss, with its centres where the classifier is."""
        weight = network.classifier.weight
        return CenterLoss(
            len(weight),
            network.feature_dim,
            options.weight,
            options.rate,
            cross_entropy=cross_entropy,
            device=weight.device,
            dtype=weight.dtype,
        )

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The criterion at the rate of the step."""
        self.criterion.rate = self.rates.index_select(0, self.step.clamp_max(len(self.rates) - 1))
        loss: Tensor = self.criterion(logits, targets, features=self.inputs.take())
        self.step.add_(1)
        return loss


def _shares(config: Config) -> list[float]:
    """The learning rate of each step as a share of the first one."""
    if config.lr == 0:
        return [1.0] * config.total_steps
    return [learning_rate(config, step) / config.lr for step in range(config.total_steps)]
