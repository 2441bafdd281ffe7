"""Sharpness-aware minimisation (Foret et al., ICLR 2021): the gradient where the loss is worst nearby."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn

from isda._utils.errors import expect_type
from isda.losses import SemanticLoss
from isda.networks import Network
from isda.semi import frozen_batch_norm
from isda.semi.base import RandomState
from isda.tasks.classification.methods.base import CrossEntropy, WrapperMethod, merge_options
from isda.tasks.classification.methods.isda import ISDA
from isda.tasks.classification.settings import ClassificationConfig

_Pass = TypeVar("_Pass")


@dataclass(frozen=True, kw_only=True)
class SAMOptions:
    """What may follow ``sam:``, beside the options of the loss."""

    rho: float = 0.05
    """How far the weights are moved, as a Euclidean norm over all of them; the authors choose from 0.01 to 0.5."""


@contextmanager
def perturbed_weights(parameters: Sequence[nn.Parameter], rho: float) -> Iterator[None]:
    """In the block, parameters are p + rho g / |g| for their gradients g, which are taken off; after it they are p.

    |g| is the norm over all parameters together, 1e-12 added. Gradients that are not finite move nothing. Scaled
    gradients, as loss scaling makes them, move as far as others.

    Example:
        >>> weight = nn.Parameter(torch.tensor([0.0, 0.0]))
        >>> (weight @ torch.tensor([3.0, 4.0])).backward()
        >>> with ascended([weight], rho=0.5):
        ...     weight.detach().clone()
        tensor([0.3000, 0.4000])
    """
    moved = [parameter for parameter in parameters if parameter.grad is not None]
    before = [parameter.detach().clone() for parameter in moved]
    with torch.no_grad():
        norm = torch.stack([torch.linalg.vector_norm(p.grad) for p in moved if p.grad is not None]).norm()
        finite = norm.isfinite()
        for parameter in moved:
            gradient = expect_type(parameter.grad, torch.Tensor)
            parameter.add_(torch.where(finite, gradient * (rho / (norm + 1e-12)), 0))
            parameter.grad = None
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, value in zip(moved, before, strict=True):
                parameter.copy_(value)


class SAM(WrapperMethod):
    """Two passes per step: up along the gradient of the first, down by the gradient of the second.

    The second pass sees the same batch, dropout masks and statistics of ISDA as the first: it feeds no statistics, of
    batch norm neither, and advances no schedule. The gradients of the first are averaged over processes before the
    weights are moved. Training figures are those of the first pass.
    """

    name = "sam"
    Options = merge_options(SAMOptions, CrossEntropy)
    grid = {"rho": (0.02, 0.05, 0.1, 0.2)}  # noqa: RUF012, a class variable of the base

    def __init__(self, options: Any, network: Network, config: ClassificationConfig) -> None:
        super().__init__(options, network, config)
        if not 0 <= options.rho < math.inf:
            raise ValueError(f"rho must be a finite number >= 0, got {options.rho}")
        self.rho = options.rho

    def differentiate(
        self, make_pass: Callable[[], _Pass], network: nn.Module, parameters: Sequence[nn.Parameter]
    ) -> _Pass:
        """The gradients at the weights that the first pass leads up to, with the weights as they were."""
        state = RandomState(parameters[0].device)
        first = make_pass()
        with perturbed_weights(parameters, self.rho), frozen_batch_norm(network), state.replayed(), ExitStack() as held:
            for criterion in self.base.modules():
                if isinstance(criterion, SemanticLoss):
                    held.enter_context(criterion.held())
            make_pass()
        return first


class SAMISDA(SAM):
    """The same for ISDA's bound."""

    name = "sam+isda"
    base_type = ISDA
    Options = merge_options(SAMOptions, ISDA)
