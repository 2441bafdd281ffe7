"""Sharpness-aware minimisation (Foret et al., ICLR 2021): the gradient at the worst weights nearby."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn

from isda._utils.errors import expect_type
from isda.lab.networks import Network
from isda.lab.semi.base import RandomState, frozen_batch_norm
from isda.lab.tasks.classification.methods.base import CrossEntropy, CrossEntropyOptions
from isda.lab.tasks.classification.settings import ClassificationConfig
from isda.losses import SemanticLoss

_Pass = TypeVar("_Pass")


@dataclass(frozen=True, kw_only=True)
class SAMOptions(CrossEntropyOptions):
    """What may follow ``sam:``, besides the options of the loss."""

    rho: float = 0.05
    """Distance that the weights are moved, a Euclidean norm over all of them; the authors choose from 0.01 to 0.5."""


@contextmanager
def perturbed_weights(parameters: Sequence[nn.Parameter], rho: float) -> Iterator[None]:
    """In the block, parameters are p + rho g / |g| for their gradients g, which are removed; after it they are p.

    |g| is the norm over all parameters together, plus 1e-12. NaN or infinite gradients move nothing. The scale of the
    gradients, as by loss scaling, does not matter.

    Example:
        >>> weight = nn.Parameter(torch.tensor([0.0, 0.0]))
        >>> (weight @ torch.tensor([3.0, 4.0])).backward()
        >>> with perturbed_weights([weight], rho=0.5):
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


class SAM(CrossEntropy):
    """Two passes per step: up along the gradient of the first, down by the gradient of the second.

    The second pass has the same batch, dropout masks and statistics of ISDA as the first; it updates no statistics,
    neither ISDA's nor batch norm's, and advances no schedule. The gradients of the first are averaged over processes
    before the weights are moved. Training metrics are those of the first pass.
    """

    name = "sam"
    Options = SAMOptions
    grid = {"rho": (0.02, 0.05, 0.1, 0.2)}  # noqa: RUF012, a class variable of the base

    def __init__(self, options: Any, network: Network, config: ClassificationConfig) -> None:
        super().__init__(options, network, config)
        if not 0 <= options.rho < math.inf:
            raise ValueError(f"rho must be a finite number >= 0, got {options.rho}")
        self.rho = options.rho

    def differentiate(
        self, make_pass: Callable[[], _Pass], network: nn.Module, parameters: Sequence[nn.Parameter]
    ) -> _Pass:
        """Leave the gradients at the perturbed weights on the parameters, and restore the weights."""
        state = RandomState(parameters[0].device)
        first = make_pass()
        with perturbed_weights(parameters, self.rho), frozen_batch_norm(network), state.replayed(), ExitStack() as held:
            for criterion in self.modules():
                if isinstance(criterion, SemanticLoss):
                    held.enter_context(criterion.held())
            make_pass()
        return first
