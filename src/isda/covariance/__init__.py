"""Class-conditional covariance models."""

from __future__ import annotations

from typing import Any

from isda.choices import check_choice
from isda.covariance.base import CovarianceModel
from isda.covariance.diagonal import DiagonalCovariance
from isda.covariance.full import FullCovariance
from isda.covariance.identity import IdentityCovariance
from isda.covariance.learned import LearnedCovariance
from isda.covariance.low_rank import LowRankCovariance
from isda.covariance.memory import CovarianceTooLarge
from isda.covariance.online import OnlineCovariance
from isda.covariance.shared import SharedCovariance

MODELS: dict[str, type[CovarianceModel]] = {
    "full": FullCovariance,
    "diagonal": DiagonalCovariance,
    "low_rank": LowRankCovariance,
    "shared": SharedCovariance,
    "identity": IdentityCovariance,
    "learned": LearnedCovariance,
}


def create(name: str, num_classes: int, feature_dim: int, **settings: Any) -> CovarianceModel:
    """Make a covariance model by name; ``settings`` go to its constructor.

    Example:
        >>> create("low_rank", num_classes=10, feature_dim=64, rank=4)
        LowRankCovariance(num_classes=10, feature_dim=64)
    """
    return MODELS[check_choice("covariance", name, tuple(MODELS))](num_classes, feature_dim, **settings)


__all__ = [
    "MODELS",
    "CovarianceModel",
    "CovarianceTooLarge",
    "DiagonalCovariance",
    "FullCovariance",
    "IdentityCovariance",
    "LearnedCovariance",
    "LowRankCovariance",
    "OnlineCovariance",
    "SharedCovariance",
    "create",
]
