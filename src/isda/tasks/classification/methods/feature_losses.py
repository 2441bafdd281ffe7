"""Losses that read the features as training methods: center loss, large-margin softmax, DistributionNet."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from isda.attach import weight_of
from isda.engine.method import Outcome
from isda.engine.settings import learning_rate
from isda.losses import CenterLoss, LargeMarginLoss
from isda.losses import DistributionNet as DistributionNetLoss
from isda.networks import Network
from isda.tasks.classification.methods.base import ClassificationMethod
from isda.tasks.classification.methods.losses import LossMethod
from isda.tasks.classification.settings import ClassificationConfig
from isda.tasks.common.data import ImageBatch

# What goes into the classifier in a training step, with its graph, for methods whose loss is one of the features.
#
# The forward pass goes through the network as the engine has wrapped it (several processes, compiled); a hook on the
# classifier sees its input on the way.


class ClassifierInput:
    """Keeps the features of a training pass until they are taken.

    Args:
        classifier: of a network that is not yet wrapped or compiled.

    Example:
        >>> import torch
        >>> classifier = nn.Linear(3, 2)
        >>> inputs = ClassifierInput(classifier)
        >>> features = torch.randn(4, 3)
        >>> logits = classifier(features)
        >>> inputs.take() is features
        True
    """

    def __init__(self, classifier: nn.Linear) -> None:
        self._classifier = classifier
        self._features: Tensor | None = None
        classifier.register_forward_hook(self)

    def __call__(self, classifier: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        """Keep the input of a pass in training mode."""
        if classifier.training:
            self._features = args[0]

    def take(self) -> Tensor:
        """(N, A) the features of the last training pass; they are kept no longer."""
        features, self._features = self._features, None
        if features is None:
            raise ValueError("features must be recorded by a training pass first, got none since they were taken")
        return features

    @property
    def weight(self) -> Tensor:
        """(C, A) the classifier's weight as it is now."""
        return weight_of(self._classifier)


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

    def __init__(self, options: CenterOptions, network: Network, config: ClassificationConfig) -> None:
        super().__init__(options, network, config)
        self.inputs = ClassifierInput(network.classifier)
        centres = self.criterion.centres
        rates = [options.rate * share for share in _shares(config)]
        # The step is counted, and its rate looked up, where the centres are: the host has nothing to wait for.
        self.register_buffer("step", torch.zeros(1, dtype=torch.int64, device=centres.device))
        self.register_buffer("rates", torch.tensor(rates, dtype=centres.dtype, device=centres.device), persistent=False)

    @classmethod
    def make_criterion(
        cls, options: CenterOptions, network: Network, config: ClassificationConfig, cross_entropy: nn.Module | None
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


def _shares(config: ClassificationConfig) -> list[float]:
    """The learning rate of each step as a share of the first one."""
    if config.lr == 0:
        return [1.0] * config.total_steps
    return [learning_rate(config, step) / config.lr for step in range(config.total_steps)]


_GAMMA_OF_A_RUN = 0.6
"""The authors' gamma on CIFAR-10 times their number of steps: 2e-5 * 30,000."""


@dataclass(frozen=True, kw_only=True)
class LargeMarginOptions:
    """What may follow ``large-margin:``."""

    margin: int = 2
    """How often the angle counts; 1 is cross-entropy."""
    base: float = 1000.0
    """lambda at the start."""
    gamma: float | None = None
    """How fast it falls; by default 0.6 / steps of the run, as in the authors' runs on CIFAR-10."""
    power: float = 45.0
    """With which power it falls."""
    lambda_min: float = 0.0
    """What it does not fall below."""


class LargeMargin(ClassificationMethod):
    """`isda.losses.LargeMarginLoss` on the network's classifier, whose bias stays outside the angle."""

    name = "large-margin"
    Options = LargeMarginOptions
    grid = {"margin": (2, 3, 4)}  # noqa: RUF012, a class variable of the base

    def __init__(self, options: LargeMarginOptions, network: Network, config: ClassificationConfig) -> None:
        super().__init__()
        self.inputs = ClassifierInput(network.classifier)
        self.criterion = LargeMarginLoss(
            options.margin,
            base=options.base,
            gamma=_GAMMA_OF_A_RUN / config.total_steps if options.gamma is None else options.gamma,
            power=options.power,
            lambda_min=options.lambda_min,
            device=network.classifier.weight.device,
        )

    def forward(self, network: nn.Module, batch: ImageBatch) -> Outcome:
        """One term: the criterion."""
        logits = network(batch.images)
        features, weight = self.inputs.take(), self.inputs.weight
        loss = self.criterion(logits, batch.targets, features=features, weight=weight)
        return Outcome({self.name: loss}, logits)

    def measures(self) -> dict[str, float]:
        """The annealing lambda of the last step."""
        return {"annealing": float(self.criterion.annealing)}


@dataclass(frozen=True, kw_only=True)
class DistributionNetOptions:
    """What may follow ``distribution-net:``."""

    sample_weight: float = 0.1
    """Weight of the drawn features beside the mean."""
    samples: int = 1
    """Draws for each image and step."""
    uncertainty_weight: float = 0.001
    """Weight of the loss that keeps the Gaussians from vanishing."""
    deviation: float = 5.0
    """The standard deviation whose entropy it asks for."""


class DistributionNetMethod(ClassificationMethod):
    """`isda.losses.DistributionNet`; its parameters are trained with the network's."""

    name = "distribution-net"
    Options = DistributionNetOptions
    grid = {"uncertainty_weight": (1e-4, 1e-3, 1e-2, 1e-1, 1.0)}  # noqa: RUF012, a class variable of the base

    def __init__(self, options: DistributionNetOptions, network: Network, config: ClassificationConfig) -> None:
        super().__init__()
        weight = network.classifier.weight
        self.inputs = ClassifierInput(network.classifier)
        self.criterion = DistributionNetLoss(
            network.feature_dim, **asdict(options), device=weight.device, dtype=weight.dtype
        )

    def forward(self, network: nn.Module, batch: ImageBatch) -> Outcome:
        """One term: the criterion."""
        logits = network(batch.images)
        features, weight = self.inputs.take(), self.inputs.weight
        loss = self.criterion(logits, batch.targets, features=features, weight=weight)
        return Outcome({self.name: loss}, logits)
