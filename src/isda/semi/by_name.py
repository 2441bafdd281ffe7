"""The semi-supervised methods by the name a user gives them, with the settings of their publications."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from isda.attach import find_classifier
from isda.choices import check_choice
from isda.covariance import CovarianceModel
from isda.losses import ISDALoss
from isda.recording import weight_of
from isda.semi.defaults import defaults_for
from isda.semi.fixmatch import FixMatch
from isda.semi.mean_teacher import MeanTeacher
from isda.semi.objective import SemiSupervised
from isda.semi.pi_model import PiModel
from isda.semi.ramps import RampedWeight
from isda.semi.regulariser import Regulariser
from isda.semi.temporal_ensembling import TemporalEnsembling
from isda.semi.vat import VAT

__all__ = ["NAMES", "create"]

ISDA_SUFFIX = "+isda"

# What a user may set of each regulariser; the rest follows from the network and the data.
_OPTIONS: dict[str, tuple[str, ...]] = {
    "supervised": (),
    "pi-model": (),
    "temporal-ensembling": ("alpha",),
    "mean-teacher": ("decay", "ramp_up_decay", "ramp_up_steps", "distance"),
    "vat": ("epsilon", "xi", "power_iterations", "entropy_minimisation"),
    "fixmatch": ("threshold",),
}

NAMES: tuple[str, ...] = tuple(name + suffix for name in _OPTIONS for suffix in ("", ISDA_SUFFIX))
"""The names that `create` knows."""


def create(
    name: str,
    network: nn.Module,
    *,
    labels: int,
    samples: int,
    total_steps: int,
    dataset: str = "cifar10",
    lambda_0: float = 0.5,
    covariance: str | CovarianceModel = "full",
    bound: str = "jensen",
    consistency_weight: RampedWeight | float | None = None,
    regulariser_weight: RampedWeight | float | None = None,
    passes: str | None = None,
    mean_over: str = "labelled",
    input_noise: float | None = None,
    **options: Any,
) -> SemiSupervised:
    """A method for a network and a data set, with the settings of its publication unless the caller says otherwise.

    Args:
        name: one of NAMES; with "+isda" the labelled loss is ISDA's bound, and the consistency bound is added.
        network: the student itself, before it is wrapped or compiled.
        labels: number of labelled samples.
        samples: number of training samples, labelled ones included; indices of unlabelled batches count these.
        total_steps: of the run.
        dataset: whose published settings to use, see `defaults_for`.
        lambda_0: ISDA's strength at the end of training; the paper chooses it from 0.1, 0.25, 0.5, 0.75, 1.
        covariance: ISDA's covariance model, by name or made already.
        bound: of both of ISDA's losses, "jensen" or "tilted".
        consistency_weight: eta_1, 1 by default; 0 for "supervised+isda", which uses no unlabelled images.
        regulariser_weight: eta_2; as published, with its ramp, by default, see `MethodSettings.weight_for`.
        passes: see SemiSupervised.
        mean_over: see SemiSupervised.
        input_noise: see SemiSupervised.
        **options: of the regulariser, e.g. epsilon, xi, power_iterations and entropy_minimisation for vat.

    Example:
        >>> from isda import networks
        >>> network = networks.create("cnn-13", num_classes=10, width=0.05)
        >>> objective = create("vat+isda", network, labels=4000, samples=50_000, total_steps=1000, epsilon=6.0)
        >>> objective.regulariser.epsilon, objective.consistency_weight.final, objective.passes
        (6.0, 1.0, 'separate')
    """
    check_choice("method", name, NAMES)
    method, with_isda = name.removesuffix(ISDA_SUFFIX), name.endswith(ISDA_SUFFIX)
    _check_options(method, options)
    if consistency_weight is not None and not with_isda:
        raise ValueError(f"consistency_weight is for methods with {ISDA_SUFFIX}, got method {name!r}")
    defaults = defaults_for(method, dataset)
    options = {**defaults.options, **options}
    if method == "mean-teacher":
        options.setdefault("ramp_up_steps", defaults.ramp_up_steps(total_steps))
    head = find_classifier(network)
    num_classes, feature_dim = weight_of(head).shape[:2]
    trained = next(head.parameters())
    placed: dict[str, Any] = {"device": trained.device, "dtype": torch.promote_types(trained.dtype, torch.float32)}
    criterion: nn.Module = nn.CrossEntropyLoss()
    if with_isda:
        criterion = ISDALoss(
            num_classes, feature_dim, lambda_0, total_steps, covariance=covariance, bound=bound, **placed
        )
    if consistency_weight is None:
        consistency_weight = 1.0 if with_isda and method != "supervised" else 0.0
    if regulariser_weight is None:
        regulariser_weight = defaults.weight_for(labels, samples, total_steps, mean_over)
    return SemiSupervised(
        network,
        criterion,
        _regulariser(method, network, samples, num_classes, placed, options),
        consistency_weight=consistency_weight,
        regulariser_weight=regulariser_weight,
        passes=defaults.passes if passes is None else passes,
        mean_over=mean_over,
        input_noise=defaults.input_noise if input_noise is None else input_noise,
    )


def _check_options(method: str, options: dict[str, Any]) -> None:
    known = _OPTIONS[method]
    for option in options:
        if not known:
            raise ValueError(f"method {method} has no options, got {option!r}")
        check_choice(f"option of method {method}", option, known)


def _regulariser(
    method: str, network: nn.Module, samples: int, num_classes: int, placed: dict[str, Any], options: dict[str, Any]
) -> Regulariser | None:
    if method == "pi-model":
        return PiModel()
    if method == "temporal-ensembling":
        return TemporalEnsembling(samples, num_classes, **options, **placed)
    if method == "mean-teacher":
        return MeanTeacher(network, **options)
    if method == "vat":
        return VAT(**options)
    return FixMatch(**options) if method == "fixmatch" else None
