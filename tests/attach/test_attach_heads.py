"""Reparametrised and bias-free classifiers: loss and gradients against weights computed by hand, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from attach_helpers import CLASSES, FEATURES, SmallNet, batch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, spectral_norm, weight_norm

from isda import ISDALoss
from oracles import batch_covariance, jensen_bound

STRENGTH = 0.7


class Head(NamedTuple):
    """A classifier, its trained tensors, and the weight as a formula of them."""

    layer: nn.Linear
    trained: Callable[[], list[Tensor]]
    weight: Callable[..., Tensor]


def linear(bias: bool = True) -> nn.Linear:
    return nn.Linear(FEATURES, CLASSES, bias=bias)


def row_norms(magnitude: Tensor, direction: Tensor) -> Tensor:
    return torch.stack([g * v / (v * v).sum().sqrt() for g, v in zip(magnitude, direction, strict=True)])


def plain() -> Head:
    head = linear()
    return Head(head, lambda: [head.weight], lambda weight: weight)


def bias_free() -> Head:
    head = linear(bias=False)
    return Head(head, lambda: [head.weight], lambda weight: weight)


def parametrised_weight_norm() -> Head:
    head = parametrizations.weight_norm(linear())
    originals = head.parametrizations.weight
    return Head(head, lambda: [originals.original0, originals.original1], row_norms)


def hooked_weight_norm() -> Head:
    head = weight_norm(linear())
    return Head(head, lambda: [head.weight_g, head.weight_v], row_norms)


def parametrised_spectral_norm() -> Head:
    head = parametrizations.spectral_norm(linear())
    norm = head.parametrizations.weight
    return Head(
        head, lambda: [norm.original], lambda original: original / (norm[0]._u.clone() @ original @ norm[0]._v.clone())
    )


def hooked_spectral_norm() -> Head:
    head = spectral_norm(linear())
    return Head(
        head,
        lambda: [head.weight_orig],
        lambda original: original / (head.weight_u.clone() @ original @ head.weight_v.clone()),
    )


HEADS = [
    plain,
    bias_free,
    parametrised_weight_norm,
    hooked_weight_norm,
    parametrised_spectral_norm,
    hooked_spectral_norm,
]


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("evaluated_in_between", [False, True], ids=["", "evaluated in between"])
@pytest.mark.parametrize("make", HEADS, ids=lambda make: make.__name__)
def test_loss_and_gradients_equal_the_explicit_computation(
    make: Callable[[], Head], evaluated_in_between: bool
) -> None:
    head = make()
    model, (x, y) = SmallNet(head.layer).double(), batch()
    x = x.double()
    criterion = ISDALoss.attach(model, lambda_0=STRENGTH, schedule="constant")
    for _ in range(2):
        logits = model(x)
        if evaluated_in_between:
            with torch.no_grad():
                model.eval()(x)
            model.train()
        loss = criterion(logits, y)
        criterion.covariance.reset()

        features = model.body(x).detach()
        leaves = [tensor.detach().clone().requires_grad_() for tensor in head.trained()]
        weight = head.weight(*leaves)
        plain_logits = features @ weight.t() + (0 if head.layer.bias is None else head.layer.bias.detach())
        covariance = batch_covariance(features, y, CLASSES)
        expected = jensen_bound(plain_logits, y, weight, covariance, STRENGTH).mean()

        torch.testing.assert_close(logits, plain_logits, rtol=0, atol=1e-12)
        torch.testing.assert_close(loss, expected, rtol=0, atol=1e-12)
        ours = torch.autograd.grad(loss, head.trained())
        for got, wanted in zip(ours, torch.autograd.grad(expected, leaves), strict=True):
            torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)


def test_criterion_takes_no_step_of_the_power_iteration() -> None:
    head = parametrizations.spectral_norm(linear())
    model, (x, y) = SmallNet(head), batch()
    before = head.parametrizations.weight[0]._u.clone()
    criterion = ISDALoss.attach(model, schedule="constant")
    assert torch.equal(head.parametrizations.weight[0]._u, before)
    logits = model(x)
    after_forward = head.parametrizations.weight[0]._u.clone()
    assert not torch.equal(after_forward, before)
    criterion(logits, y)
    assert torch.equal(head.parametrizations.weight[0]._u, after_forward)
    assert all(module.training for module in model.modules())


def test_weight_normalised_1x1_convolution_trains_magnitude_and_direction() -> None:
    model = nn.Sequential(nn.Conv2d(3, 6, 1), nn.ReLU(), parametrizations.weight_norm(nn.Conv2d(6, 4, 1))).double()
    x, y = torch.randn(2, 3, 5, 5, dtype=torch.float64), torch.arange(50).reshape(2, 5, 5) % 4
    criterion = ISDALoss.attach(model, lambda_0=STRENGTH, schedule="constant")
    loss = criterion(model(x), y)
    features = model[:2](x).detach().permute(0, 2, 3, 1).reshape(-1, 6)
    originals = model[2].parametrizations.weight
    leaves = [t.detach().clone().requires_grad_() for t in (originals.original0, originals.original1)]
    weight = row_norms(leaves[0].flatten(), leaves[1].flatten(1))
    logits, labels = features @ weight.t() + model[2].bias.detach(), y.flatten()
    expected = jensen_bound(logits, labels, weight, batch_covariance(features, labels, 4), STRENGTH).mean()
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-12)
    ours = torch.autograd.grad(loss, [originals.original0, originals.original1])
    for got, wanted in zip(ours, torch.autograd.grad(expected, leaves), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)
