"""Statistics accumulate in float32 or better whatever the features and the autocast mode are."""

from __future__ import annotations

import pytest
import torch
from covariance_cases import ALL, ONLINE, A, C, assert_same_state, fed, make, snapshot, stream

from isda import covariance
from isda.functional import moments


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("cast", [torch.bfloat16, torch.float16])
def test_half_precision_features_count_as_their_float32_values(name, cast):
    features, targets = stream(dtype=torch.float32)
    plain, half = make(name, torch.float32), make(name, torch.float32)
    half.load_state_dict(plain.state_dict())
    plain.update(features.to(cast).float(), targets)
    half.update(features.to(cast), targets)
    assert_same_state(half, snapshot(plain))


@pytest.mark.parametrize("name", ALL)
def test_autocast_does_not_touch_the_statistics(name):
    features, targets = stream(dtype=torch.float32)
    plain, cast = make(name, torch.float32), make(name, torch.float32)
    cast.load_state_dict(plain.state_dict())
    for part in torch.arange(40).split([1, 20, 19]):
        plain.update(features[part], targets[part])
        with torch.autocast("cpu", torch.bfloat16):
            cast.update(features[part], targets[part])
    assert_same_state(cast, snapshot(plain))
    with torch.autocast("cpu", torch.bfloat16):
        cast.merge(fed(name, torch.float32))
    plain.merge(fed(name, torch.float32))
    assert_same_state(cast, snapshot(plain))


@pytest.mark.parametrize("name", ONLINE)
def test_autocast_does_not_touch_large_batches(name):
    # More than 2**20 numbers: the means are sums by a matrix product.
    generator = torch.Generator().manual_seed(0)
    features, targets = torch.randn(1100, 1000, generator=generator), torch.randint(2, (1100,), generator=generator)
    plain, cast = (covariance.create(name, 2, 1000, **({"rank": 2} if name == "low_rank" else {})) for _ in range(2))
    plain.update(features, targets)
    with torch.autocast("cpu", torch.bfloat16):
        cast.update(features, targets)
    assert_same_state(cast, snapshot(plain))


@pytest.mark.parametrize("name", ALL)
def test_autocast_does_not_touch_margin_variances_and_samples(name):
    model, weight = fed(name, torch.float32), torch.randn(C, A)
    expected = model.margin_variance(weight, range(C))
    draws = model.sample([0, 1], 3, generator=torch.Generator().manual_seed(1))
    with torch.autocast("cpu", torch.bfloat16):
        actual = model.margin_variance(weight, range(C))
        again = model.sample([0, 1], 3, generator=torch.Generator().manual_seed(1))
    assert actual.dtype == torch.float32
    assert torch.equal(actual, expected)
    assert torch.equal(again, draws)


def test_autocast_does_not_touch_the_masked_products_of_devices_that_must_not_wait(monkeypatch):
    features, targets = stream(dtype=torch.float32)
    real = moments.add_outer_products
    monkeypatch.setattr("isda.covariance.full.add_outer_products", lambda *a: real(*a, on_host=False))
    plain, cast = make("full", torch.float32), make("full", torch.float32)
    plain.update(features, targets)
    with torch.autocast("cpu", torch.bfloat16):
        cast.update(features, targets)
    assert_same_state(cast, snapshot(plain))


@pytest.mark.parametrize("name", ALL)
def test_margin_variances_of_half_precision_weights_are_float32_with_gradients(name):
    model = fed(name, torch.float32)
    weight = torch.randn(C, A).bfloat16().requires_grad_()
    values = model.margin_variance(weight, range(C))
    assert values.dtype == torch.float32
    assert torch.equal(values, model.margin_variance(weight.float(), range(C)))
    values.sum().backward()
    assert weight.grad.dtype == torch.bfloat16
    assert weight.grad.any()


@pytest.mark.parametrize("name", ONLINE)
def test_features_that_need_gradients_leave_no_graph_behind(name):
    features, targets = stream()
    model = make(name)
    model.update(features.requires_grad_(), targets)
    assert not any(buffer.requires_grad for buffer in model.buffers())
