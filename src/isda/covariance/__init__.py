"""Class-conditional covariance models."""

from __future__ import annotations

from typing import Any

from isda._utils.choices import check_choice
from isda.covariance.base import CovarianceModel
from isda.covariance.diagonal import DiagonalCovariance, IdentityCovariance
from isda.covariance.full import FullCovariance, SharedCovariance, WithinCovariance
from isda.covariance.learned import LearnedCovariance
from isda.covariance.low_rank import LowRankCovariance
from isda.covariance.memory import AUTO, CovarianceTooLarge, auto_name, log_auto_choice
from isda.covariance.online import OnlineCovariance
from isda.covariance.shrunk import ShrunkCovariance
from isda.covariance.wrappers import ConfusionCovariance, ScaledCovariance

__all__ = [
    "MODELS",
    "ConfusionCovariance",
    "CovarianceModel",
    "CovarianceTooLarge",
    "DiagonalCovariance",
    "FullCovariance",
    "IdentityCovariance",
    "LearnedCovariance",
    "LowRankCovariance",
    "OnlineCovariance",
    "ScaledCovariance",
    "SharedCovariance",
    "ShrunkCovariance",
    "WithinCovariance",
    "create",
]

MODELS: dict[str, type[CovarianceModel]] = {
    "full": FullCovariance,
    "diagonal": DiagonalCovariance,
    "low_rank": LowRankCovariance,
    "shared": SharedCovariance,
    "within": WithinCovariance,
    "shrunk": ShrunkCovariance,
    "identity": IdentityCovariance,
    "learned": LearnedCovariance,
}


def create(name: str, num_classes: int, feature_dim: int, **settings: Any) -> CovarianceModel:
    """Make a covariance model by name; ``settings`` go to its constructor.

    "auto" is "full" up to 1 GiB of state and 50 GFLOP per step (on an accelerator 5,000), else "low_rank", which alone
    uses a ``rank``; the latter is logged once.

    Example:
        >>> create("low_rank", num_classes=10, feature_dim=64, rank=4)
        LowRankCovariance(num_classes=10, feature_dim=64)
    """
    requested = check_choice("covariance", name, (*MODELS, AUTO))
    if requested == AUTO:
        name = auto_name(num_classes, feature_dim, settings.get("device"))
        if name == "full":
            settings.pop("rank", None)
    model = MODELS[name](num_classes, feature_dim, **settings)
    if requested == AUTO and isinstance(model, LowRankCovariance):
        log_auto_choice(num_classes, feature_dim, model.rank)
    return model
