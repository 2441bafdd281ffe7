"""Losses that read the features as training methods: center loss, large-margin softmax, DistributionNet."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from isda.lab.engine.settings import learning_rate
from isda.lab.methods.base import CriterionMethod
from isda.lab.methods.criteria import CenterLoss, DistributionNet, LargeMarginLoss
from isda.lab.methods.losses import LossMethod
from isda.lab.networks import Network

if TYPE_CHECKING:
    from isda.lab.tasks.classification.settings import ClassificationConfig


class ClassifierInput:
    """Keeps the classifier's input in a training pass, with its graph, until it is taken.

    A hook on the classifier records it, so the network may be wrapped (several processes) or compiled afterwards.

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
        return self._classifier.weight


@dataclass(frozen=True, kw_only=True)
class CenterOptions:
    """What may follow ``center:``."""

    weight: float = 0.003
    """Weight of the squared distances to the centres."""
    rate: float = 0.5
    """Rate at which the centres follow the features, at the start."""


class Center(LossMethod):
    """`CenterLoss`, with rate_t = rate * lr_t / lr_0: the paper's 0.5 is an "initial" rate."""

    name = "center"
    Options = CenterOptions
    grid = {"weight": (0.0003, 0.001, 0.003, 0.01, 0.03)}  # noqa: RUF012, a class variable of the base
    loss_type = CenterLoss
    arguments = ("weight", "rate")

    criterion: CenterLoss
    step: Tensor
    rates: Tensor

    def __init__(self, options: CenterOptions, network: Network, config: ClassificationConfig) -> None:
        super().__init__(options, network, config)
        self.inputs = ClassifierInput(network.classifier)
        centres = self.criterion.centres
        # The learning rate of each step as a share of the first one.
        shares = [learning_rate(config, t) / config.lr if config.lr else 1.0 for t in range(config.total_steps)]
        rates = [options.rate * share for share in shares]
        # The step is counted, and its rate looked up, on the device of the centres: no transfer to the host.
        self.register_buffer("step", torch.zeros(1, dtype=torch.int64, device=centres.device))
        self.register_buffer("rates", torch.tensor(rates, dtype=centres.dtype, device=centres.device), persistent=False)

    def further_arguments(self, network: Network) -> dict[str, Any]:
        """The sizes and the device of the classifier."""
        weight = network.classifier.weight
        sizes = {"num_classes": len(weight), "feature_dim": network.feature_dim}
        return sizes | {"device": weight.device, "dtype": weight.dtype}

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The criterion at the rate of the step."""
        self.criterion.rate = self.rates.index_select(0, self.step.clamp_max(len(self.rates) - 1))
        loss: Tensor = self.criterion(logits, targets, features=self.inputs.take())
        self.step.add_(1)
        return loss


class FeatureLossMethod(CriterionMethod):
    """A criterion of logits, targets, features and the classifier's weight.

    Args:
        network: before it is wrapped or compiled.
        criterion: on the network's device.
    """

    def __init__(self, network: Network, criterion: nn.Module) -> None:
        super().__init__()
        self.inputs, self.criterion = ClassifierInput(network.classifier), criterion

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The criterion of a step."""
        loss: Tensor = self.criterion(logits, targets, features=self.inputs.take(), weight=self.inputs.weight)
        return loss


_GAMMA_OF_A_RUN = 0.6
"""The authors' gamma on CIFAR-10 times their number of steps: 2e-5 * 30,000."""


@dataclass(frozen=True, kw_only=True)
class LargeMarginOptions:
    """What may follow ``large-margin:``."""

    margin: int = 2
    """Factor on the angle; 1 is cross-entropy."""
    base: float = 1000.0
    """lambda at the start."""
    gamma: float | None = None
    """Speed of the decay; by default 0.6 / steps of the run, as in the authors' runs on CIFAR-10."""
    power: float = 45.0
    """Exponent of the decay."""
    lambda_min: float = 0.0
    """Lower limit of lambda."""


class LargeMargin(FeatureLossMethod):
    """`LargeMarginLoss` on the network's classifier, whose bias stays outside the angle."""

    name = "large-margin"
    Options = LargeMarginOptions
    grid = {"margin": (2, 3, 4)}  # noqa: RUF012, a class variable of the base

    criterion: LargeMarginLoss

    def __init__(self, options: LargeMarginOptions, network: Network, config: ClassificationConfig) -> None:
        given = asdict(options)
        if options.gamma is None:
            given["gamma"] = _GAMMA_OF_A_RUN / config.total_steps
        super().__init__(network, LargeMarginLoss(**given, device=network.classifier.weight.device))

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
    """The standard deviation whose entropy is its target."""


class DistributionNetMethod(FeatureLossMethod):
    """`DistributionNet`; its parameters are trained with the network's."""

    name = "distribution-net"
    Options = DistributionNetOptions
    grid = {"uncertainty_weight": (1e-4, 1e-3, 1e-2, 1e-1, 1.0)}  # noqa: RUF012, a class variable of the base

    def __init__(self, options: DistributionNetOptions, network: Network, config: ClassificationConfig) -> None:
        weight = network.classifier.weight
        given = asdict(options) | {"device": weight.device, "dtype": weight.dtype}
        super().__init__(network, DistributionNet(network.feature_dim, **given))
