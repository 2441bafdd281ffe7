"""Optimisers by name, made from a configuration, with a learning rate of its own for each group of parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import nn

__all__ = ["OPTIMISERS", "RATE", "make_optimiser"]

RATE = "rate"
"""What a group of parameters calls its share of the learning rate."""


class _Optimised(Protocol):
    """What of a configuration decides the optimiser."""

    @property
    def optimiser(self) -> str: ...
    @property
    def lr(self) -> float: ...
    @property
    def momentum(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...


_Groups = list[dict[str, Any]]


def _sgd(groups: _Groups, config: _Optimised) -> torch.optim.Optimizer:
    """Nesterov momentum, and an L2 penalty on all parameters, as in the paper."""
    return torch.optim.SGD(
        groups, lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay, nesterov=True
    )


def _adamw(groups: _Groups, config: _Optimised) -> torch.optim.Optimizer:
    """Decoupled weight decay (Loshchilov and Hutter, 2019), of matrices and kernels alone: no biases, no scales."""
    split = [
        {**group, "params": params, "weight_decay": decay}
        for group in groups
        for params, decay in (
            ([p for p in group["params"] if p.ndim > 1], config.weight_decay),
            ([p for p in group["params"] if p.ndim <= 1], 0.0),
        )
        if params
    ]
    return torch.optim.AdamW(split, lr=config.lr)


OPTIMISERS: dict[str, Callable[[_Groups, _Optimised], torch.optim.Optimizer]] = {"sgd": _sgd, "adamw": _adamw}


def make_optimiser(
    config: _Optimised, parameters: Sequence[nn.Parameter], rates: Mapping[nn.Parameter, float]
) -> torch.optim.Optimizer:
    """The optimiser that a configuration names.

    Args:
        config: says which, at what rate.
        parameters: to train.
        rates: the share of the learning rate that a parameter has; the whole where it is not named. Parameters with one
            share are one group, which has it under RATE: whoever sets the rate of a step multiplies by it.
    """
    by_rate: dict[float, list[nn.Parameter]] = {}
    for parameter in parameters:
        by_rate.setdefault(rates.get(parameter, 1.0), []).append(parameter)
    groups: _Groups = [{"params": params, RATE: rate} for rate, params in by_rate.items()]
    return OPTIMISERS[config.optimiser](groups, config)
