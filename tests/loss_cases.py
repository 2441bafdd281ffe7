"""What the tests of the method share: seeded numbers, models that have learned, and comparisons with gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from isda import ISDALoss, covariance
from isda.covariance import Covariance
from oracles import covariances_of

KINDS = ("full", "diagonal", "low_rank", "shared", "within", "identity", "learned")
ONLINE = KINDS[:5]
BOUNDS = ("jensen", "tilted")


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Standard normal numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def integers(high: int, *shape: int, seed: int) -> Tensor:
    """Numbers in 0..high-1."""
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed))


def settings_of(kind: str, dim: int) -> dict[str, Any]:
    """So that a sketch keeps all rows, and learned covariances have no term of their own."""
    return {"low_rank": {"rank": dim}, "learned": {"uncertainty_weight": 0.0}}.get(kind, {})


def covariance_model(kind: str, num_classes: int, dim: int, *, dtype: torch.dtype = torch.float64, **more: Any) -> Any:
    """A model of this kind that has seen nothing, with learned factors that are not the identity."""
    model = covariance.create(kind, num_classes, dim, dtype=dtype, **settings_of(kind, dim) | more)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.6 * normal(*parameter.shape, seed=3, dtype=dtype))
    return model


def learned(kind: str, num_classes: int, dim: int, *, rows_each: int = 6, seed: int = 0) -> tuple[Covariance, Tensor]:
    """A model that has seen rows of every class, and the covariances (C, A, A) that it must have."""
    model = covariance_model(kind, num_classes, dim)
    features = normal(rows_each * num_classes, dim, seed=seed) + 2
    targets = torch.arange(num_classes).repeat(rows_each)
    model.update(features, targets)
    return model, sigmas_of(model, kind, features, targets)


def sigmas_of(model: Covariance, kind: str, features: Tensor, targets: Tensor) -> Tensor:
    """(C, A, A) by the oracle; those of learned factors are D D', and gradients reach D."""
    if kind == "learned":
        (factor,) = model.parameters()
        return factor @ factor.mT
    return covariances_of(kind, features, targets, model.num_classes)


def criterion_of(kind: str = "full", num_classes: int = 4, dim: int = 5, **settings: Any) -> ISDALoss:
    """A criterion in float64 whose covariances are of this kind."""
    model = covariance_model(kind, num_classes, dim)
    return ISDALoss(num_classes, dim, **{"lambda_0": 0.8, "total_steps": 10, "dtype": torch.float64} | settings,
                    covariance=model)  # fmt: skip


def network(dim: int = 5, classes: int = 4, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """Features of three inputs and a classifier."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, dim), nn.Tanh(), nn.Linear(dim, classes)).to(dtype)


def batch(rows: int = 9, classes: int = 4, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Inputs and labels of ``network``."""
    return normal(rows, 3, seed=seed, dtype=dtype), integers(classes, rows, seed=seed + 1)


def state_of(module: nn.Module) -> dict[str, Tensor]:
    """A copy of the state."""
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def assert_same_state(module: nn.Module, before: dict[str, Tensor]) -> None:
    """The state is bit for bit what it was."""
    after = module.state_dict()
    assert after.keys() == before.keys()
    assert [name for name, value in after.items() if not torch.equal(value, before[name])] == []


def assert_same_with_gradients(
    actual: Tensor, expected: Tensor, leaves: Any, *, atol: float = 1e-10, rtol: float = 1e-9
) -> None:
    """Values agree, and so do the gradients of a random combination of them with respect to the leaves."""
    torch.testing.assert_close(actual, expected, atol=atol, rtol=rtol)
    pull = normal(*expected.shape, seed=99, dtype=expected.dtype)
    ours = torch.autograd.grad(actual, leaves, pull, retain_graph=True)
    theirs = torch.autograd.grad(expected, leaves, pull, retain_graph=True)
    for mine, other in zip(ours, theirs, strict=True):
        assert other.abs().max() > 0
        torch.testing.assert_close(mine, other, atol=atol, rtol=rtol)
