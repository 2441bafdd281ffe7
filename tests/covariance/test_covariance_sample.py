"""Samples follow the covariances, class by class and at any rank."""

from __future__ import annotations

import pytest
import torch
from covariance_cases import ALL, ONLINE, A, C, fed, make, matrices, stream


@pytest.mark.parametrize("name", ALL)
def test_samples_have_the_covariance_of_their_class(name):
    model, n = fed(name), 40000
    draws = model.sample([2, 0, 2], n, generator=torch.Generator().manual_seed(0))
    assert draws.shape == (3, n, A)
    for row, c in zip(draws, [2, 0, 2], strict=True):
        sigma = matrices(model)[c].detach()
        size = float(sigma.trace())
        assert row.mean(0).norm() <= 5 * (size / n) ** 0.5
        # The error of a sample covariance is about sqrt(A / n) of its size: four of those.
        assert (row.T @ row / n - sigma).norm() <= 4 * (A / n) ** 0.5 * size


@pytest.mark.parametrize("name", ONLINE)
def test_samples_of_rank_deficient_covariances_stay_in_their_span(name):
    features, targets = stream(20)
    plane = torch.zeros_like(features)
    plane[:, :2] = features[:, :2]
    model = make(name)
    model.update(plane, targets)
    draws = model.sample([0, 1], 5000, generator=torch.Generator().manual_seed(0))
    assert draws[..., :2].std() > 0.1
    assert draws[..., 2:].abs().max() < 1e-7
    sigma = matrices(model)[1]
    assert (draws[1].T @ draws[1] / 5000 - sigma).norm() <= 0.15 * float(sigma.trace())


@pytest.mark.parametrize("name", ["full", "diagonal", "low_rank"])
def test_classes_not_seen_yet_are_not_augmented(name):
    assert not fed(name).sample([C - 1], 10).any()


@pytest.mark.parametrize("name", ALL)
def test_strength_scales_the_variance_and_a_generator_fixes_the_draws(name):
    model = fed(name)

    def draw(**settings):
        return model.sample([0, 1], 3, generator=torch.Generator().manual_seed(5), **settings)

    assert torch.equal(draw(), draw())
    torch.testing.assert_close(draw(strength=4.0), 2 * draw())
    assert not draw(strength=0.0).any()


@pytest.mark.parametrize("name", ALL)
def test_features_are_augmented_around_themselves_and_keep_their_gradient(name):
    model = fed(name)
    features = torch.randn(2, A, dtype=torch.float64).requires_grad_()
    directions = model.sample([0, 1], 3, generator=torch.Generator().manual_seed(5))
    augmented = model.sample([0, 1], 3, features=features, generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close(augmented, features.unsqueeze(1) + directions)
    assert directions.requires_grad == (name == "learned")
    assert (torch.autograd.grad(augmented.sum(), features)[0] == 3).all()


@pytest.mark.parametrize("name", ALL)
def test_sampling_changes_no_state_and_targets_may_be_a_tensor_of_any_integer_type(name):
    model = fed(name)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    generator = torch.Generator
    first = model.sample([2, 1], 2, generator=generator().manual_seed(1))
    for dtype in (torch.int64, torch.int32, torch.uint8):
        again = model.sample(torch.tensor([2, 1], dtype=dtype), 2, generator=generator().manual_seed(1))
        assert torch.equal(first, again)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
