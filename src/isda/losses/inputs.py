"""Validation of the arguments of criteria and of the inputs of a call, before any state changes."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import torch
from torch import Tensor

from isda._utils import checks
from isda._utils.choices import check_choice, did_you_mean
from isda.covariance import MODELS, CovarianceModel, create
from isda.covariance.memory import AUTO, AUTO_CHOICES
from isda.functional.patches import Patches


def check_weights(name: str, weights: Any, size: int) -> None:
    """Refuse weights of classes or labels that are not ``size`` finite numbers >= 0 in a tensor."""
    if not isinstance(weights, Tensor):
        raise ValueError(f"{name} must be a tensor of shape ({size},), got {type(weights).__name__}")
    if tuple(weights.shape) != (size,):
        raise ValueError(f"{name} must have shape ({size},), got {checks.shape_of(weights)}")
    bad = None if weights.is_meta else weights[~((weights >= 0) & weights.isfinite())]
    if bad is not None and len(bad):
        raise ValueError(f"{name} must hold finite numbers >= 0, got {float(bad[0]):g} ({len(bad)} of {size} are not)")


def refuse_sizes(settings: dict[str, Any]) -> None:
    """Refuse sizes that attach reads off the classifier."""
    for name in ("num_classes", "feature_dim"):
        if name in settings:
            raise ValueError(f"{name} must not be given, because the classifier has it, got {settings[name]!r}")


def make_covariance(
    covariance: str | CovarianceModel,
    num_classes: int,
    feature_dim: int,
    settings: dict[str, Any],
    criterion: type,
    **factory: Any,
) -> CovarianceModel:
    """The covariance model of a criterion: of that name with its own settings, or one already made, if it fits."""
    if isinstance(covariance, str):
        _check_known(covariance, settings, criterion)
        return create(covariance, num_classes, feature_dim, **factory, **settings)
    _check_model(covariance, num_classes, feature_dim, settings)
    return covariance


def _check_known(covariance: str, settings: dict[str, Any], criterion: type) -> None:
    """Refuse settings that neither the criterion nor the covariance model of this name has."""
    check_choice("covariance", covariance, (*MODELS, AUTO))
    models = [MODELS[name] for name in (AUTO_CHOICES if covariance == AUTO else (covariance,))]
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


class LossInputs(NamedTuple):
    """One call's input.

    Attributes:
        logits: (N, C, ...) as given.
        targets: as given, at label resolution.
        weight: (C, A).
        features: (rows, A) or None.
        classes: (rows,) the class of each row of features: its label, or the largest share of a soft target. On the
            CPU 0 where the label is ignored, elsewhere as given.
        counts: (rows,) False where the label is ignored; None when every row counts.
        grid: spatial size of the features, which is where variances are computed; empty for plain rows.
    """

    logits: Tensor
    targets: Tensor
    weight: Tensor
    features: Tensor | Patches | None
    classes: Tensor
    counts: Tensor | None
    grid: torch.Size


def check_not_sharded(**tensors: Tensor | Patches | None) -> None:
    """Refuse tensors that are spread over processes; a weight may be."""
    for name, tensor in tensors.items():
        if type(tensor).__name__ == "DTensor":
            raise ValueError(f"{name} must be an ordinary tensor, got a DTensor; pass its full_tensor()")


def check_logits(logits: Tensor, num_classes: int) -> None:
    """Floating point logits (N, C, ...) of at least one sample."""
    if logits.ndim < 2 or logits.shape[1] != num_classes:
        raise ValueError(f"logits must have shape (N, {num_classes}, ...), got {checks.shape_of(logits)}")
    if logits.numel() == 0:
        raise ValueError(f"logits must hold at least one sample, got an empty batch {checks.shape_of(logits)}")
    checks.check_floating_point("logits", logits)


def plain_weight(weight: Tensor) -> Tensor:
    """(C, A) ordinary tensor from the weight of a linear layer or a 1x1 convolution, sharded or not.

    A DTensor is gathered; its gradient is averaged over the processes that hold it, as data parallel training does
    (where every process computes the same gradient, as in tensor parallel training, the average is that gradient).
    """
    if type(weight).__name__ == "DTensor":
        try:
            from torch.distributed.tensor import Partial
        except ImportError:  # torch 2.4
            from torch.distributed._tensor import Partial  # type: ignore[attr-defined]

        mesh = weight.device_mesh  # type: ignore[attr-defined]
        weight = weight.full_tensor(grad_placements=[Partial("sum")] * mesh.ndim)  # type: ignore[attr-defined]
        if weight.requires_grad:
            # Not Partial("avg"): without NCCL, torch 2.4 adds up and does not divide.
            weight.register_hook(lambda gradient: gradient / mesh.size())
    return weight.flatten(1) if weight.ndim > 2 and weight.shape[2:].numel() == 1 else weight


def check_features(logits: Tensor, features: Tensor | Patches, dim: int) -> None:
    """Floating point features (N, A, ...) for the samples of the logits, of any spatial size."""
    if isinstance(features, Patches):
        if (logits.ndim, len(logits), dim) != (4, features.samples, features.shape[1]):
            sizes = f"{features.shape[1]} numbers per pixel of {features.samples} images"
            raise ValueError(
                f"features must be of the {len(logits)} samples of logits, {dim} numbers each, got {sizes}"
            )
        return
    if features.ndim != logits.ndim or len(features) != len(logits) or features.shape[1] != dim:
        expected = f"({len(logits)}, {dim}{', ...' * (logits.ndim - 2)})"
        raise ValueError(
            f"features must have shape {expected} for logits {checks.shape_of(logits)}, got {checks.shape_of(features)}"
        )
    if features.numel() == 0:
        raise ValueError(f"features must hold at least one row, got {checks.shape_of(features)}")
    checks.check_floating_point("features", features)
