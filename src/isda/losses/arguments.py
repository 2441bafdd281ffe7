"""What the criterion is made with, checked."""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor

from isda import checks
from isda.choices import check_choice, did_you_mean
from isda.covariance import MODELS, CovarianceModel, create
from isda.covariance.auto import AUTO

__all__ = ["check_found", "check_settings", "check_tilt_steps", "check_weights", "made_covariance"]


def check_settings(num_classes: int, label_smoothing: float, class_weight: Tensor | None) -> None:
    """Refuse values out of range; see ISDALoss."""
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing must lie in 0..1, got {label_smoothing!r}")
    if class_weight is not None:
        check_weights("class_weight", class_weight, num_classes)
        if not class_weight.is_meta and not bool((class_weight > 0).any()):
            raise ValueError("class_weight must be above 0 for at least one class, got zeros alone")


def check_weights(name: str, weights: Any, size: int) -> None:
    """Refuse weights of classes or labels that are not ``size`` finite numbers >= 0 in a tensor."""
    if not isinstance(weights, Tensor):
        raise ValueError(f"{name} must be a tensor of shape ({size},), got {type(weights).__name__}")
    if tuple(weights.shape) != (size,):
        raise ValueError(f"{name} must have shape ({size},), got {checks.shape_of(weights)}")
    bad = None if weights.is_meta else weights[~((weights >= 0) & weights.isfinite())]
    if bad is not None and len(bad):
        raise ValueError(f"{name} must hold finite numbers >= 0, got {float(bad[0]):g} ({len(bad)} of {size} are not)")


def check_found(settings: dict[str, Any]) -> None:
    """Refuse sizes that attach reads off the classifier."""
    for name in ("num_classes", "feature_dim"):
        if name in settings:
            raise ValueError(f"{name} must not be given, because the classifier has it, got {settings[name]!r}")


def check_tilt_steps(tilt_steps: int) -> None:
    """Refuse what is no number of steps; see ISDALoss."""
    if int(tilt_steps) != tilt_steps or tilt_steps < 0:
        raise ValueError(f"tilt_steps must be an integer >= 0, got {tilt_steps!r}")


def made_covariance(
    covariance: str | CovarianceModel,
    num_classes: int,
    feature_dim: int,
    settings: dict[str, Any],
    criterion: type,
    **place: Any,
) -> CovarianceModel:
    """The covariance model of a criterion: of that name with its own settings, or one already made, if it fits."""
    if isinstance(covariance, str):
        _check_known(covariance, settings, criterion)
        return create(covariance, num_classes, feature_dim, **place, **settings)
    _check_model(covariance, num_classes, feature_dim, settings)
    return covariance


def _check_known(covariance: str, settings: dict[str, Any], criterion: type) -> None:
    """Refuse settings that neither the criterion nor the covariance model of this name has."""
    check_choice("covariance", covariance, (*MODELS, AUTO))
    models = [MODELS[name] for name in (("full", "low_rank") if covariance == AUTO else (covariance,))]
    own = {name for model in models for kind in model.__mro__ for name in _keywords(kind)}
    for name in settings:
        if name not in own:
            taken = {name for kind in criterion.__mro__ for name in _keywords(kind)}
            known = sorted(own | taken | {"classifier"})
            what = f"{criterion.__name__} has no setting {name!r} with covariance={covariance!r}"
            raise ValueError(what + did_you_mean(name, known))


def _keywords(kind: type) -> set[str]:
    """The names that the constructor of a class, itself, takes."""
    if "__init__" not in vars(kind):
        return set()
    parameters = inspect.signature(vars(kind)["__init__"]).parameters.values()
    return {p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)} - {"self"}


def _check_model(covariance: Any, num_classes: int, feature_dim: int, settings: dict[str, Any]) -> None:
    """Refuse a covariance model that does not fit the classifier, or settings that it would not get."""
    if not isinstance(covariance, CovarianceModel):
        raise ValueError(f"covariance must be a name or a CovarianceModel, got {type(covariance).__name__}")
    if settings:
        names = ", ".join(settings)
        raise ValueError(f"{names} cannot be set here when covariance is a model already made; set it there")
    if (covariance.num_classes, covariance.feature_dim) != (num_classes, feature_dim):
        sizes = f"{covariance.num_classes} classes x {covariance.feature_dim} features"
        raise ValueError(f"covariance must be for {num_classes} classes x {feature_dim} features, got {sizes}")
