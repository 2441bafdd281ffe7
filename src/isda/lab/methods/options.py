"""Method options of ISDA and explicit augmentation: the arguments of the criteria under the same names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import nn

from isda._utils.choices import check_choice
from isda._utils.errors import expect_type
from isda.covariance import MODELS, CovarianceModel
from isda.lab.engine.options import import_class
from isda.lab.networks import Network
from isda.losses import SemanticLoss
from isda.losses.schedule import SCHEDULES

ClassifierLayer = nn.Linear | nn.Conv2d
"""A classifier: a linear layer, or a 1x1 convolution."""

_Criterion = TypeVar("_Criterion", bound=SemanticLoss)

DIVERGENCE_HINT = "try a smaller lr or lambda_0"

_ESTIMATED = ("full", "diagonal", "low_rank", "shared", "within")
# Arguments of the covariance, not of the criterion, and the models that have them.
_COVARIANCE_OPTIONS = {
    "decay": _ESTIMATED,
    "rank": ("low_rank", "learned"),
    "scale": ("learned",),
    "uncertainty_weight": ("learned",),
    "uncertainty_margin": ("learned",),
}


@dataclass(frozen=True, kw_only=True)
class SemanticOptions:
    """Options of every method that augments features; see ISDALoss and the covariance models."""

    lambda_0: float = 0.5
    """Strength at the end of training."""
    covariance: str = "full"
    """full, diagonal, low_rank, shared, within, identity, learned, or package.module.Class of your own."""
    decay: float | None = None
    """Factor on the statistics of a class whenever it occurs, to forget old features."""
    rank: int | None = None
    """Rank of low_rank and learned covariances."""
    label_smoothing: float | None = None
    """Share of the target that is spread over all classes."""
    schedule: str = "linear"
    """linear, from 0 to lambda_0, or constant."""
    scale: float | None = None
    """Learned covariances: standard deviation of each direction at the start."""
    uncertainty_weight: float | None = None
    """Learned covariances: weight of the loss that keeps them from vanishing."""
    uncertainty_margin: float | None = None
    """Learned covariances: the entropy that this loss aims at."""

    arguments: ClassVar[tuple[str, ...]] = ("lambda_0", "covariance", "label_smoothing", *_COVARIANCE_OPTIONS)
    """The options that are arguments of the criterion."""

    def criterion_settings(self, head: ClassifierLayer, total_steps: int) -> dict[str, Any]:
        """The arguments of the criterion for a classifier and the number of steps of the run."""
        given = {name: getattr(self, name) for name in self.arguments if getattr(self, name) is not None}
        schedule = check_choice("schedule", self.schedule, SCHEDULES)
        if "." in self.covariance:
            given["covariance"] = self._model(head, given)
        else:
            check_choice("covariance", self.covariance, MODELS)
        for name, models in _COVARIANCE_OPTIONS.items():
            if name in given and self.covariance not in models:
                raise ValueError(f"{name} is for covariance={' or '.join(models)}, got covariance={self.covariance}")
        if schedule == "constant":
            return given | {"schedule": schedule}
        return given | {"total_steps": total_steps}

    def attached(self, loss: type[_Criterion], network: Network, total_steps: int, **given: Any) -> _Criterion:
        """The criterion on a network's classifier, with further arguments; its strength grows over the whole run."""
        settings = self.criterion_settings(network.classifier, total_steps) | given
        return loss.attach(network, classifier=network.classifier, **settings)

    def _model(self, head: ClassifierLayer, given: dict[str, Any]) -> CovarianceModel:
        """A covariance model of the user's own, made with the options that are not the criterion's."""
        model_type: Any = import_class(self.covariance, CovarianceModel, "covariance")
        own = {name: given.pop(name) for name in _COVARIANCE_OPTIONS if name in given}
        num_classes, feature_dim = head.weight.shape[:2]
        dtype = torch.promote_types(head.weight.dtype, torch.float32)
        try:
            model = model_type(num_classes, feature_dim, device=head.weight.device, dtype=dtype, **own)
        except TypeError as error:
            raise ValueError(f"covariance {self.covariance} could not be created: {error}") from error
        return expect_type(model, CovarianceModel)


@dataclass(frozen=True, kw_only=True)
class ISDAOptions(SemanticOptions):
    """What may follow ``isda:``; see ISDALoss."""

    bound: str = "jensen"
    """jensen, as published, or tilted."""
    tilt_steps: int | None = None
    """Steps of the search for the tilted bound."""
    max_ratio: float | None = None
    """Upper limit of the variance term, in units of what the logits of a sample vary by."""

    arguments: ClassVar[tuple[str, ...]] = (*SemanticOptions.arguments, "bound", "tilt_steps", "max_ratio")


@dataclass(frozen=True, kw_only=True)
class ExplicitOptions(SemanticOptions):
    """What may follow ``explicit:``; see ExplicitLoss."""

    samples: int = 5
    """Augmented features per sample, M; 0 for plain cross-entropy."""

    arguments: ClassVar[tuple[str, ...]] = (*SemanticOptions.arguments, "samples")
