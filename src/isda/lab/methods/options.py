"""Options of ISDA and explicit augmentation: the arguments of the criteria under the same names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import nn

from isda import ISDALoss
from isda.covariance import KINDS, Covariance
from isda.lab.choices import check_choice
from isda.lab.engine.options import import_class
from isda.lab.methods.base import CrossEntropyOptions
from isda.lab.networks import Network

ClassifierLayer = nn.Linear | nn.Conv2d
"""A classifier: a linear layer, or a 1x1 convolution."""

_Criterion = TypeVar("_Criterion", bound=ISDALoss)

DIVERGENCE_HINT = "try a smaller lr or lambda_0"

_COVARIANCE_OPTIONS = {
    "memory": ("full", "diagonal", "low_rank", "shared", "within"),
    "rank": ("low_rank", "learned"),
    "scale_0": ("learned",),
    "uncertainty_weight": ("learned",),
    "uncertainty_margin": ("learned",),
}
"""Arguments of covariance models, and the models that have them."""


@dataclass(frozen=True, kw_only=True)
class SemanticOptions(CrossEntropyOptions):
    """Options of every method that augments features; see ISDALoss and the covariance models."""

    lambda_0: float = 0.5
    """Strength at the end of training."""
    covariance: str = "full"
    """full, diagonal, low_rank, shared, within, identity, learned, or package.module.Class of your own."""
    memory: int | None = None
    """Samples of a class that count fully; older ones weigh less."""
    rank: int | None = None
    """Rank of low_rank and learned covariances."""
    schedule: str = "linear"
    """linear, from 0 to lambda_0, or constant."""
    scale_0: float | None = None
    """Learned covariances: standard deviation of each direction at the start."""
    uncertainty_weight: float | None = None
    """Learned covariances: weight of the loss that keeps them from vanishing."""
    uncertainty_margin: float | None = None
    """Learned covariances: the entropy that this loss aims at."""

    arguments: ClassVar[tuple[str, ...]] = ("lambda_0", "label_smoothing")
    """The options that are arguments of the criterion."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.lambda_0 < float("inf"):
            raise ValueError(f"lambda_0 must be a finite number >= 0, got {self.lambda_0}")
        check_choice("schedule", self.schedule, ("linear", "constant"))
        if "." in self.covariance:
            return
        check_choice("covariance", self.covariance, KINDS)
        for name, models in _COVARIANCE_OPTIONS.items():
            if getattr(self, name) is not None and self.covariance not in models:
                raise ValueError(f"{name} is for covariance={' or '.join(models)}, got covariance={self.covariance}")

    def criterion_settings(self, head: ClassifierLayer, total_steps: int) -> dict[str, Any]:
        """The arguments of the criterion for a classifier and the number of steps of the run."""
        settings = {name: getattr(self, name) for name in self.arguments}
        own = {name: getattr(self, name) for name in _COVARIANCE_OPTIONS if getattr(self, name) is not None}
        if "." in self.covariance:
            return settings | {"covariance": self._model(head, own), "total_steps": self._steps(total_steps)}
        return settings | own | {"covariance": self.covariance, "total_steps": self._steps(total_steps)}

    def attached(self, loss: type[_Criterion], network: Network, total_steps: int, **given: Any) -> _Criterion:
        """The criterion on a network's classifier, with further arguments; its strength grows over the whole run."""
        settings = self.criterion_settings(network.classifier, total_steps) | given
        return self.started(loss.attach(network, classifier=network.classifier, **settings))

    def started(self, criterion: _Criterion) -> _Criterion:
        """A new criterion, where the strength is constant: at the end of its growth."""
        if self.schedule == "constant":
            criterion.set_step(1)
        return criterion

    def _steps(self, total_steps: int) -> int:
        return 1 if self.schedule == "constant" else total_steps

    def _model(self, head: ClassifierLayer, own: dict[str, Any]) -> Covariance:
        """A covariance model of the user's own."""
        model_type: Any = import_class(self.covariance, Covariance, "covariance")
        dtype = torch.promote_types(head.weight.dtype, torch.float32)
        model: Covariance = model_type(*head.weight.shape[:2], device=head.weight.device, dtype=dtype, **own)
        return model


@dataclass(frozen=True, kw_only=True)
class ISDAOptions(SemanticOptions):
    """What may follow ``isda:``; see ISDALoss."""

    bound: str = "jensen"
    """jensen, as published, or tilted."""
    max_ratio: float | None = None
    """Upper limit of the variance term, in units of what the logits of a sample vary by."""

    arguments: ClassVar[tuple[str, ...]] = (*SemanticOptions.arguments, "bound", "max_ratio")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("bound", self.bound, ("jensen", "tilted"))


@dataclass(frozen=True, kw_only=True)
class ExplicitOptions(SemanticOptions):
    """What may follow ``explicit:``; see ExplicitLoss."""

    samples: int = 5
    """Augmented features per sample, M."""

    arguments: ClassVar[tuple[str, ...]] = (*SemanticOptions.arguments, "samples")
