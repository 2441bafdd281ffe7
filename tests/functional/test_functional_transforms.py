"""torch.func.grad, vmap and hessian over the functional forms, against torch.autograd and a loop."""

from __future__ import annotations

import pytest
import torch
from torch.func import grad, hessian, vmap

from isda.covariance import MODELS, create
from isda.functional import (
    jensen_bound,
    jensen_consistency,
    margin_variance,
    tilted_bound,
    tilted_consistency,
)

C, A, N = 4, 3, 5


def learned(name: str):
    generator = torch.Generator().manual_seed(0)
    settings = {"rank": 2} if name in ("low_rank", "learned") else {}
    model = create(name, C, A, dtype=torch.float64, **settings)
    model.update(torch.randn(6 * C, A, generator=generator, dtype=torch.float64), torch.arange(C).repeat(6))
    return model.requires_grad_(False)


def batch():
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(N, C, generator=generator, dtype=torch.float64)
    weight = torch.randn(C, A, generator=generator, dtype=torch.float64) / 2
    return logits, weight, torch.arange(N) % C


def bounds(model, targets):
    """Every bound as a function of logits and weight, summed."""

    def jensen(z, w):
        matrices = torch.stack([model.covariance(c) for c in range(C)])
        return jensen_bound(z, targets, margin_variance(w, matrices, targets), 0.8).sum()

    return {
        "jensen": jensen,
        "tilted": lambda z, w: tilted_bound(z, targets, w, model, 0.8, 8).sum(),
        "jensen_consistency": lambda z, w: jensen_consistency(z, w, model, 0.8).sum(),
        "tilted_consistency": lambda z, w: tilted_consistency(z, w, model, 0.8, 8).sum(),
    }


NAMES = ("jensen", "tilted", "jensen_consistency", "tilted_consistency")


@pytest.mark.parametrize("bound", NAMES)
@pytest.mark.parametrize("covariance", MODELS)
def test_grad(covariance: str, bound: str) -> None:
    logits, weight, targets = batch()
    function = bounds(learned(covariance), targets)[bound]
    leaves = logits.clone().requires_grad_(), weight.clone().requires_grad_()
    expected = torch.autograd.grad(function(*leaves), leaves)
    torch.testing.assert_close(grad(function, argnums=(0, 1))(logits, weight), expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("bound", NAMES)
@pytest.mark.parametrize("covariance", MODELS)
def test_vmap_over_weights(covariance: str, bound: str) -> None:
    logits, weight, targets = batch()
    function = bounds(learned(covariance), targets)[bound]
    stack = torch.stack([weight, weight / 2])
    expected = torch.stack([grad(function, argnums=1)(logits, each) for each in stack])
    result = vmap(grad(function, argnums=1), (None, 0))(logits, stack)
    torch.testing.assert_close(result, expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("covariance", ["full", "diagonal", "shared"])
def test_gradients_per_sample(covariance: str) -> None:
    (logits, weight, targets), model = batch(), learned(covariance)

    def of_sample(z, w, y):
        return tilted_bound(z.unsqueeze(0), y.unsqueeze(0), w, model, 0.8, 8).sum()

    result = vmap(grad(of_sample, argnums=1), (0, None, 0))(logits, weight, targets)
    expected = torch.stack([grad(of_sample, argnums=1)(z, weight, y) for z, y in zip(logits, targets, strict=True)])
    torch.testing.assert_close(result, expected, rtol=1e-7, atol=1e-9)


def test_hessian_of_the_tilted_bound() -> None:
    logits, weight, targets = batch()
    function = bounds(learned("full"), targets)["tilted"]
    expected = torch.autograd.functional.hessian(lambda z: function(z, weight), logits)
    torch.testing.assert_close(hessian(lambda z: function(z, weight))(logits), expected, rtol=1e-7, atol=1e-8)
