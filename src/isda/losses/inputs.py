"""Validation of the arguments of criteria and of the inputs of a call, before any state changes; the update of the
statistics with a checked batch.
"""

from __future__ import annotations

import inspect
import weakref
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from isda._utils import checks
from isda._utils.checks import warn
from isda._utils.choices import check_choice, did_you_mean
from isda._utils.devices import on_host
from isda.attach import RecordedFeatures, Recorder
from isda.covariance import MODELS, ConfusionCovariance, CovarianceModel, OnlineCovariance, create
from isda.covariance.memory import AUTO
from isda.functional.grouping import Groups
from isda.functional.patches import Patches, dense
from isda.losses.targets import SoftTargetMonitor, as_rows, is_soft, resize_labels, resize_logits


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


def refuse_sizes(settings: dict[str, Any]) -> None:
    """Refuse sizes that attach reads off the classifier."""
    for name in ("num_classes", "feature_dim"):
        if name in settings:
            raise ValueError(f"{name} must not be given, because the classifier has it, got {settings[name]!r}")


def check_tilt_steps(tilt_steps: int) -> None:
    """Refuse what is no number of steps; see ISDALoss."""
    if int(tilt_steps) != tilt_steps or tilt_steps < 0:
        raise ValueError(f"tilt_steps must be an integer >= 0, got {tilt_steps!r}")


def make_covariance(
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


class LossInputSettings(Protocol):
    """The settings of the criterion that decide what a valid input is."""

    num_classes: int
    feature_dim: int
    ignore_index: int
    validate: bool
    shares: SoftTargetMonitor


def features_and_weight(
    recorder: Recorder | None, logits: Tensor, features: Tensor | None, weight: Tensor | None, *, verify: bool
) -> tuple[Tensor | Patches | None, Tensor | None, RecordedFeatures | None]:
    """Features and weight as given or as the attached classifier recorded them, and what was recorded.

    No features in eval mode, and neither for logits without a graph that are not the classifier's.
    """
    if features is not None and weight is not None:
        return features, weight, None
    recorder = require_recorder(recorder, features, weight)
    if features is not None:
        return features, recorder.take_weight(logits, verify=verify), None
    found = recorder.find(logits, verify=verify)
    if found is None:
        return None, weight, None
    return found.rows_for(logits), found.weight if weight is None else weight, found


def require_recorder(recorder: Recorder | None, features: Tensor | None, weight: Tensor | None) -> Recorder:
    """The recorder, or the error that names what has to be given without one."""
    if recorder is None:
        missing = " and ".join(n for n, given in (("features", features), ("weight", weight)) if given is None)
        raise ValueError(
            f"{missing} must be given, for example criterion(logits, targets, features=features, "
            "weight=head.weight); or use ISDALoss.attach(model, ...), which records them"
        )
    return recorder


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


def check_batch(
    settings: LossInputSettings, logits: Tensor, targets: Tensor, features: Tensor | Patches | None, weight: Tensor
) -> LossInputs:
    """Bring one call's input into one form, or raise ValueError for anything that does not fit together."""
    check_not_sharded(logits=logits, targets=targets, features=features)
    check_logits(settings, logits)
    weight = plain_weight(weight)
    check_weight_shape(settings, weight)
    _check_targets(logits, targets)
    grid = logits.shape[2:]
    if features is not None:
        check_features(logits, features, settings.feature_dim)
        grid = grid_of(features)
        _check_sizes(logits, targets, grid)
        features = as_rows(features)
    if is_soft(targets):
        classes = targets.argmax(1)
        if settings.validate:
            settings.shares.check(targets)
            if not on_host(targets):
                # A row that is not finite has no class: -1 keeps it out of the statistics, where it is counted as bad.
                classes = classes.masked_fill(targets.sum(1).isfinite().logical_not(), -1)
        return LossInputs(logits, targets, weight, features, classes.flatten(), None, grid)
    targets = targets.long()
    clean = _labels_are_clean(settings, targets)
    labels = targets if logits.ndim == 2 else resize_labels(targets, grid).flatten()
    if clean:
        return LossInputs(logits, targets, weight, features, labels, None, grid)
    counts = labels != settings.ignore_index
    if on_host(labels):
        labels = labels.masked_fill(~counts, 0)
    # Elsewhere labels out of range have not been looked for: covariance.update reports them, the loss itself asserts.
    return LossInputs(logits, targets, weight, features, labels, counts, grid)


def check_not_sharded(**tensors: Tensor | Patches | None) -> None:
    """Refuse tensors that are spread over processes; a weight may be."""
    for name, tensor in tensors.items():
        if type(tensor).__name__ == "DTensor":
            raise ValueError(f"{name} must be an ordinary tensor, got a DTensor; pass its full_tensor()")


def check_logits(settings: LossInputSettings, logits: Tensor) -> None:
    """Floating point logits (N, C, ...) of at least one sample."""
    if logits.ndim < 2 or logits.shape[1] != settings.num_classes:
        raise ValueError(f"logits must have shape (N, {settings.num_classes}, ...), got {checks.shape_of(logits)}")
    if logits.numel() == 0:
        raise ValueError(f"logits must hold at least one sample, got an empty batch {checks.shape_of(logits)}")
    if not logits.is_floating_point():
        raise ValueError(f"logits must be floating point, got {logits.dtype}")


def check_weight_shape(settings: LossInputSettings, weight: Tensor) -> None:
    """The weight of the classifier, (C, A)."""
    expected = (settings.num_classes, settings.feature_dim)
    if weight.shape != expected:
        raise ValueError(f"weight must have shape {expected}, got {checks.shape_of(weight)}")


def _labels_are_clean(settings: LossInputSettings, targets: Tensor) -> bool:
    """Whether every label is known to lie in 0..C-1 and none is ignored; raises for labels out of range."""
    if not on_host(targets):
        return False
    low, high = (int(value) for value in targets.aminmax())
    if low >= 0 and high < settings.num_classes and not 0 <= settings.ignore_index < settings.num_classes:
        return True
    if settings.validate:
        message = checks.label_error(targets, settings.num_classes, settings.ignore_index)
        if message is not None:
            raise ValueError(message)
    return False


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


def _check_targets(logits: Tensor, targets: Tensor) -> None:
    if is_soft(targets):
        if targets.shape != logits.shape:
            expected = f"the shape of logits, {checks.shape_of(logits)}"
            raise ValueError(f"targets given as distributions must have {expected}, got {checks.shape_of(targets)}")
        return
    checks.check_labels_dtype(targets)
    if targets.ndim != logits.ndim - 1 or len(targets) != len(logits):
        expected = (
            f"({len(logits)},)" if logits.ndim == 2 else f"({len(logits)}, " + "..., " * (logits.ndim - 3) + "...)"
        )
        raise ValueError(
            f"targets must have shape {expected} for logits {checks.shape_of(logits)}, got {checks.shape_of(targets)}"
        )
    if targets.numel() == 0:
        raise ValueError(f"targets must hold at least one label, got {checks.shape_of(targets)}")


def grid_of(features: Tensor | Patches) -> torch.Size:
    """The spatial size of features (N, A, ...)."""
    return features.grid if isinstance(features, Patches) else features.shape[2:]


def check_features(logits: Tensor, features: Tensor | Patches, dim: int) -> None:
    """Floating point features (N, A, ...) for the samples of the logits, of any spatial size."""
    if isinstance(features, Patches):
        if (logits.ndim, len(logits), dim) != (4, features.samples, features.shape[1]):
            sizes = f"{features.shape[1]} numbers at the places of {features.samples} images"
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
    if not features.is_floating_point():
        raise ValueError(f"features must be floating point, got {features.dtype}")


def _check_sizes(logits: Tensor, targets: Tensor, grid: torch.Size) -> None:
    if is_soft(targets) and grid != logits.shape[2:]:
        raise ValueError(
            f"features must have the spatial size of targets given as distributions, {tuple(targets.shape[2:])}, got "
            f"{tuple(grid)}"
        )


_ABLE = (CovarianceModel.update, OnlineCovariance.update)
"""Updates that take patches as they are."""


def update_statistics(covariance: CovarianceModel, batch: LossInputs, groups: Groups, align_corners: bool) -> None:
    """Update the model with a batch.

    Args:
        covariance: the model.
        batch: a call's input, with features.
        groups: its rows by class.
        align_corners: how logits are resized to the features (F.interpolate).
    """
    with covariance.withdrawing():
        if batch.features is None:
            raise ValueError("batch must hold the features to learn from, got none")
        known = groups if batch.counts is None or not on_host(batch.classes) else None
        absorbed = batch.features if type(covariance).update in _ABLE else dense(batch.features)
    covariance.update(absorbed, batch.classes, mask=batch.counts, groups=known)
    if isinstance(covariance, ConfusionCovariance):
        shown = as_rows(resize_logits(batch.logits, batch.grid, align_corners))
        covariance.observe(shown, batch.classes, batch.counts)


class RepeatMonitor:
    """Warns, once, of a second pass over a batch that counts again: sharpness-aware minimisation without ``held``.

    It is told by the very same targets in two calls in a row, between which the weight has changed, but no optimizer of
    torch has made a step. Nothing is read from a device. Scripts that move weights by hand are left alone: there has to
    be a step before.
    """

    def __init__(self) -> None:
        self._targets: weakref.ref[Tensor] | None = None
        self._versions, self._steps, self._warned = (0, 0), 0, False
        self._first = _OptimizerSteps.count_from_now()

    def __reduce__(self) -> tuple[type[RepeatMonitor], tuple[()]]:
        """A copy has seen no targets."""
        return (RepeatMonitor, ())

    def check(self, targets: Tensor, weight: Tensor) -> None:
        """Look at a call that counts: its targets as given, and the weight of the classifier."""
        if self._warned or targets.is_inference() or weight.is_inference():
            return
        versions, steps = (targets._version, weight._version), _OptimizerSteps.number
        same = self._targets is not None and self._targets() is targets and self._versions[0] == versions[0]
        if same and self._versions[1] != versions[1] and self._steps == steps > self._first:
            self._warned = True
            warn(
                "the statistics count the same batch twice: the weights changed between two passes over the same "
                "targets, but no optimizer made a step; put the second pass of sharpness-aware minimisation, and "
                "further evaluations of a closure, into `with criterion.held():`"
            )
        self._targets, self._versions, self._steps = weakref.ref(targets), versions, steps


class _OptimizerSteps:
    """How many steps the optimizers of torch have made since the first criterion was made."""

    number = 0
    _counted = False

    @classmethod
    def count_from_now(cls) -> int:
        if not cls._counted:
            cls._counted = True
            register_optimizer_step_post_hook(cls._count)
        return cls.number

    @classmethod
    def _count(cls, *_: Any) -> None:
        if not torch.compiler.is_compiling():  # a compiled step would be compiled again for every number
            cls.number += 1
