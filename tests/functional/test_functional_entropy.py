"""Entropies of Gaussians, and the loss that keeps learned covariances from collapsing."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import MultivariateNormal, Normal

from isda.functional import diagonal_gaussian_entropy, feature_uncertainty_loss, gaussian_entropy

pytestmark = pytest.mark.any_device


def test_entropy_of_a_square_factor_is_that_of_the_normal_distribution():
    factor = torch.randn(4, 3, 3, dtype=torch.float64)
    expected = MultivariateNormal(torch.zeros(3, dtype=torch.float64), factor @ factor.mT).entropy()
    torch.testing.assert_close(gaussian_entropy(factor), expected)


def test_entropy_of_a_tall_factor_is_that_within_its_span():
    factor = torch.randn(5, 2, dtype=torch.float64)
    basis, _ = torch.linalg.qr(factor)
    inside = basis.T @ factor  # coordinates within the span: an ordinary Gaussian in two dimensions
    expected = MultivariateNormal(torch.zeros(2, dtype=torch.float64), inside @ inside.T).entropy()
    torch.testing.assert_close(gaussian_entropy(factor), expected)


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4)])
def test_diagonal_entropy_is_that_of_independent_normals(shape):
    log_variance = torch.randn(shape, dtype=torch.float64)
    expected = Normal(torch.zeros(4, dtype=torch.float64), (log_variance / 2).exp()).entropy().sum(-1)
    torch.testing.assert_close(diagonal_gaussian_entropy(log_variance), expected)


@pytest.mark.parametrize("entropy", [gaussian_entropy, diagonal_gaussian_entropy])
def test_entropies_pass_gradcheck(entropy):
    assert torch.autograd.gradcheck(entropy, torch.randn(2, 3, 3, dtype=torch.float64).requires_grad_())


def test_uncertainty_loss_pulls_only_below_the_margin():
    entropy = torch.tensor([1.0, 3.0], requires_grad=True)
    below = feature_uncertainty_loss(entropy, margin=5.0)
    assert below.item() == pytest.approx(3.0)
    assert torch.autograd.grad(below, entropy)[0].tolist() == [-0.5, -0.5]
    above = feature_uncertainty_loss(entropy, margin=1.5)
    assert above.item() == 0
    assert torch.autograd.grad(above, entropy)[0].tolist() == [0, 0]


def test_one_step_on_the_uncertainty_loss_widens_the_gaussians():
    factor = (0.1 * torch.randn(2, 3, 3, dtype=torch.float64)).requires_grad_()
    before = gaussian_entropy(factor)
    (grad,) = torch.autograd.grad(feature_uncertainty_loss(before, margin=10.0), factor)
    assert (gaussian_entropy(factor - 1e-4 * grad) > before).all()
