"""Convolutions that see more than one place: the loss of unfolded features, made a few rows at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isda import ISDABCELoss, ISDALoss
from isda.covariance import MODELS
from isda.functional import grouping
from largest_tensor import LargestTensor
from oracles import batch_covariance, jensen_bound

CLASSES = 4


def network(**settings: Any) -> nn.Sequential:
    head = nn.Conv2d(5, CLASSES, **{"kernel_size": 3, "padding": 1, **settings})
    return nn.Sequential(nn.Conv2d(3, 5, 1), nn.ReLU(), head).double()


def batch(size: int = 6) -> tuple[Tensor, Tensor]:
    targets = torch.arange(2 * size * size).view(2, size, size) % CLASSES
    targets[0, :2] = -100
    return torch.randn(2, 3, size, size, dtype=torch.float64), targets


def unfolded(model: nn.Sequential, x: Tensor) -> Tensor:
    """(N, A k k, h, w) what the classifier sees."""
    head = model[2]
    columns = F.unfold(model[:2](x), head.kernel_size, head.dilation, head.padding, head.stride)
    return columns.unflatten(2, model(x).shape[2:]).detach()


def test_loss_and_gradient_equal_the_bound_on_patches() -> None:
    model, (x, y) = network(), batch()
    criterion = ISDALoss.attach(model, lambda_0=0.7, schedule="constant")
    loss = criterion(model(x), y)
    rows = unfolded(model, x).movedim(1, -1).flatten(0, -2)
    counted = y.flatten() != -100
    rows, labels = rows[counted], y.flatten()[counted]
    leaf = model[2].weight.detach().clone().requires_grad_()
    weight = leaf.flatten(1)
    logits, covariance = rows @ weight.t() + model[2].bias.detach(), batch_covariance(rows, labels, CLASSES)
    expected = jensen_bound(logits, labels, weight, covariance, 0.7).mean()
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-11)
    gradients = (torch.autograd.grad(loss, model[2].weight)[0], torch.autograd.grad(expected, leaf)[0])
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-11)


@pytest.mark.parametrize("covariance", MODELS)
@pytest.mark.parametrize("chunked", [False, True], ids=["", "in chunks"])
def test_every_covariance_learns_from_patches(covariance: str, chunked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if chunked:
        monkeypatch.setattr(grouping, "WORKSPACE_BYTES", 4 * 45 * 8 * 16)  # 16 rows at a time
    model, (x, y) = network(stride=2), batch(8)
    settings = {"rank": 60} if covariance == "low_rank" else {}
    criterion = ISDALoss.attach(model, lambda_0=0.7, covariance=covariance, schedule="constant", **settings)
    by_hand = ISDALoss(CLASSES, 45, 0.7, covariance=covariance, dtype=torch.float64, schedule="constant", **settings)
    by_hand.load_state_dict(criterion.state_dict())
    logits = model(x)
    loss = criterion(logits, y)
    wanted = by_hand(logits, y, features=unfolded(model, x), weight=model[2].weight.flatten(1))
    torch.testing.assert_close(loss, wanted, rtol=0, atol=1e-11)
    for index in range(CLASSES):
        ours, theirs = (c.covariance.covariance(index) for c in (criterion, by_hand))
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11)


def test_patches_are_never_all_there_at_once() -> None:
    model = nn.Sequential(nn.Conv2d(3, 32, 1), nn.Conv2d(32, CLASSES, 5, padding=2))
    x, y = torch.randn(2, 3, 96, 96), torch.zeros(2, 96, 96, dtype=torch.int64)
    criterion = ISDALoss.attach(model, covariance="diagonal", schedule="constant")
    logits = model(x)
    everything = 2 * 96 * 96 * 32 * 25 * 4
    with LargestTensor([]) as seen:
        criterion(logits, y)
    assert seen.largest <= grouping.WORKSPACE_BYTES < everything / 1.5, seen.where


def test_features_that_are_not_finite_are_refused_and_change_nothing() -> None:
    model, (x, y) = network(), batch()
    y[y < 0] = 0
    x[0, 0, 0, 0] = torch.inf
    criterion = ISDALoss.attach(model, validate=True, schedule="constant")
    with pytest.raises(ValueError, match=r"features must be finite, got NaN or infinity in 4 of 72 rows"):
        criterion(model(x), y)
    assert not any(tensor.any() for tensor in criterion.state_dict().values())


def test_upsampled_and_picked_outputs_and_several_labels() -> None:
    model, (x, _) = network(stride=2), batch()
    criterion = ISDALoss.attach(
        nn.Sequential(model, nn.Upsample(scale_factor=2, mode="bilinear")), lambda_0=0.5, schedule="constant"
    )
    y = torch.arange(72).view(2, 6, 6) % CLASSES
    logits = F.interpolate(model(x), scale_factor=2, mode="bilinear")
    by_hand = ISDALoss(CLASSES, 45, 0.5, dtype=torch.float64, schedule="constant")
    wanted = by_hand(logits, y, features=unfolded(model, x), weight=model[2].weight.flatten(1))
    torch.testing.assert_close(criterion(logits, y), wanted)
    rows = model(x)[:, :, 1, 2]
    wanted = by_hand(rows, y[:, 0, 0], features=unfolded(model, x)[:, :, 1, 2], weight=model[2].weight.flatten(1))
    torch.testing.assert_close(criterion(rows, y[:, 0, 0]), wanted)
    labels = ISDABCELoss.attach(model, lambda_0=0.5, schedule="constant")
    targets = (torch.arange(2 * CLASSES * 9).view(2, CLASSES, 3, 3) % 2).double()
    by_hand = ISDABCELoss(CLASSES, 45, 0.5, dtype=torch.float64, schedule="constant")
    wanted = by_hand(model(x), targets, features=unfolded(model, x), weight=model[2].weight.flatten(1))
    torch.testing.assert_close(labels(model(x), targets), wanted)
