"""Class-conditional covariance models."""

from __future__ import annotations

from typing import Any

from isda.choices import check_choice
from isda.covariance.auto import AUTO, choose, say_choice
from isda.covariance.base import CovarianceModel
from isda.covariance.confusion import ConfusionCovariance
from isda.covariance.diagonal import DiagonalCovariance
from isda.covariance.full import FullCovariance
from isda.covariance.identity import IdentityCovariance
from isda.covariance.learned import LearnedCovariance
from isda.covariance.low_rank import LowRankCovariance
from isda.covariance.memory import CovarianceTooLarge
from isda.covariance.online import OnlineCovariance
from isda.covariance.scaled import ScaledCovariance
from isda.covariance.shared import SharedCovariance
from isda.covariance.shrunk import ShrunkCovariance
from isda.covariance.within import WithinCovariance

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

    "auto" is "full" up to 1 GiB of state, else "low_rank", which alone uses a ``rank``; it says so in the log, once.

    Example:
        >>> create("low_rank", num_classes=10, feature_dim=64, rank=4)
        LowRankCovariance(num_classes=10, feature_dim=64)
    """
    asked = check_choice("covariance", name, (*MODELS, AUTO))
    if asked == AUTO:
        name = choose(num_classes, feature_dim)
        if name == "full":
            settings.pop("rank", None)
    model = MODELS[name](num_classes, feature_dim, **settings)
    if asked == AUTO and isinstance(model, LowRankCovariance):
        say_choice(num_classes, feature_dim, model.rank)
    return model


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
