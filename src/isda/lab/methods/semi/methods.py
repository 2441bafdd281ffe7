"""Semi-supervised methods by name, with the settings of their publications."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
from torch import nn

from isda import ISDALoss
from isda.attach import find_classifiers
from isda.covariance import Covariance
from isda.lab.choices import check_choice
from isda.lab.methods.semi.base import Regulariser, RegulariserContext
from isda.lab.methods.semi.defaults import RampedWeight, defaults_for
from isda.lab.methods.semi.objective import SemiSupervised
from isda.lab.methods.semi.regularisers import VAT, MeanTeacher, PiModel, TemporalEnsembling

ISDA_SUFFIX = "+isda"

REGULARISERS: dict[str, type[Regulariser]] = {
    regulariser.name: regulariser for regulariser in (PiModel, TemporalEnsembling, MeanTeacher, VAT)
}

SUPERVISED = "supervised"
"""The baseline: labelled images alone."""

NAMES: tuple[str, ...] = tuple(name + suffix for name in (SUPERVISED, *REGULARISERS) for suffix in ("", ISDA_SUFFIX))
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
    covariance: str | Covariance = "full",
    bound: str = "jensen",
    consistency_weight: RampedWeight | float | None = None,
    regulariser_weight: RampedWeight | float | None = None,
    passes: str | None = None,
    mean_over: str = "labelled",
    input_noise: float | None = None,
    ramp_up_steps: int | None = None,
    **options: Any,
) -> SemiSupervised:
    """A method for a network and a data set, with the settings of its publication by default.

    Args:
        name: one of NAMES; with "+isda" the labelled loss is ISDA's bound, and the consistency bound is added.
        network: the student itself, before it is wrapped or compiled.
        labels: number of labelled samples.
        samples: number of training samples, labelled ones included; indices of unlabelled batches count these.
        total_steps: of the run.
        dataset: whose published settings to use, see `defaults_for`.
        lambda_0: ISDA's strength at the end of training; the paper chooses it from 0.1, 0.25, 0.5, 0.75, 1.
        covariance: ISDA's covariance model, by name or as an object.
        bound: of both of ISDA's losses, "jensen" or "tilted".
        consistency_weight: eta_1, 1 by default; 0 for "supervised+isda", which uses no unlabelled images.
        regulariser_weight: eta_2; as published, with its ramp, by default, see `MethodSettings.weight_for`.
        passes: see SemiSupervised.
        mean_over: see SemiSupervised.
        input_noise: see SemiSupervised.
        ramp_up_steps: over which eta_2 and the teacher's decay ramp up; as published by default.
        **options: of the regulariser, e.g. epsilon, xi, power_iterations and entropy_minimisation for vat; with "+isda"
            also of ISDALoss, e.g. memory and rank.

    Example:
        >>> from isda.lab import networks
        >>> network = networks.create("cnn-13", num_classes=10, width=0.05)
        >>> objective = create("vat+isda", network, labels=4000, samples=50_000, total_steps=1000, epsilon=6.0)
        >>> objective.regulariser.epsilon, objective.consistency_weight.final, objective.passes
        (6.0, 1.0, 'separate')
    """
    check_choice("method", name, NAMES)
    method, with_isda = name.removesuffix(ISDA_SUFFIX), name.endswith(ISDA_SUFFIX)
    own, further = _split_options(method, options, with_isda)
    if consistency_weight is not None and not with_isda:
        raise ValueError(f"consistency_weight is for methods with {ISDA_SUFFIX}, got method {name!r}")
    defaults = defaults_for(method, dataset)
    own = {**defaults.options, **own}
    ramp_up_steps = defaults.ramp_up_steps(total_steps) if ramp_up_steps is None else ramp_up_steps
    (head,) = find_classifiers(network)
    num_classes, feature_dim = head.weight.shape[:2]
    device, dtype = head.weight.device, torch.promote_types(head.weight.dtype, torch.float32)
    criterion: nn.Module = nn.CrossEntropyLoss()
    if with_isda:
        settings: dict[str, Any] = {"covariance": covariance, "bound": bound, "device": device, "dtype": dtype}
        criterion = ISDALoss(num_classes, feature_dim, lambda_0, total_steps, **settings, **further)
    if consistency_weight is None:
        consistency_weight = 1.0 if with_isda and method != SUPERVISED else 0.0
    if regulariser_weight is None:
        final = defaults.weight_for(labels, samples, total_steps, mean_over).final
        regulariser_weight = RampedWeight(final, steps=ramp_up_steps)
    regulariser = None
    if method in REGULARISERS:
        context = RegulariserContext(network, samples, num_classes, device, dtype, ramp_up_steps)
        regulariser = REGULARISERS[method].create(context, **own)
    return SemiSupervised(
        network,
        criterion,
        regulariser,
        consistency_weight=consistency_weight,
        regulariser_weight=regulariser_weight,
        passes=defaults.passes if passes is None else passes,
        mean_over=mean_over,
        input_noise=defaults.input_noise if input_noise is None else input_noise,
    )


def _split_options(method: str, options: dict[str, Any], with_isda: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options that are the regulariser's, and those that are for ISDALoss."""
    known = [f.name for f in fields(REGULARISERS[method].Options)] if method in REGULARISERS else []
    own = {name: value for name, value in options.items() if name in known}
    further = {name: value for name, value in options.items() if name not in known}
    if further and not with_isda:
        first = next(iter(further))
        if not known:
            raise ValueError(f"method {method} has no options, got {first!r}")
        check_choice(f"option of method {method}", first, known)
    return own, further
