"""Covariances of classes in feature space, learned online: eqs. (1) to (3)."""

from __future__ import annotations

from typing import Any

from isda._checks import check_choice
from isda.covariance.base import Covariance, Groups
from isda.covariance.diagonal import DiagonalCovariance, IdentityCovariance, LearnedCovariance, LowRankCovariance
from isda.covariance.full import FullCovariance, SharedCovariance, WithinCovariance

__all__ = [
    "KINDS",
    "Covariance",
    "DiagonalCovariance",
    "FullCovariance",
    "Groups",
    "IdentityCovariance",
    "LearnedCovariance",
    "LowRankCovariance",
    "SharedCovariance",
    "WithinCovariance",
    "create",
]

KINDS: dict[str, type[Covariance]] = {
    "full": FullCovariance,
    "diagonal": DiagonalCovariance,
    "low_rank": LowRankCovariance,
    "shared": SharedCovariance,
    "within": WithinCovariance,
    "identity": IdentityCovariance,
    "learned": LearnedCovariance,
}


def create(kind: str | Any, num_classes: int, feature_dim: int, **settings: Any) -> Any:
    """The covariance model of that name, or the given one if it has the sizes.

    Example:
        >>> create("low_rank", 10, 64, rank=8).rank
        8
    """
    if isinstance(kind, str):
        return KINDS[check_choice("covariance", kind, KINDS)](num_classes, feature_dim, **settings)
    settings = {name: value for name, value in settings.items() if name not in ("device", "dtype")}
    if settings:
        raise ValueError(f"{', '.join(settings)} must be given to the covariance model itself")
    if (kind.num_classes, kind.feature_dim) != (num_classes, feature_dim):
        sizes = f"{kind.num_classes} classes and {kind.feature_dim} features"
        raise ValueError(f"the covariance model is for {sizes}, not for {num_classes} and {feature_dim}")
    return kind
