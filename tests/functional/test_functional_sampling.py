"""Explicit augmentation and Monte-Carlo expectations against loops and quadrature."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from isda.functional import explicit_consistency, explicit_loss, monte_carlo
from isda.functional.sampling import covariance_root, symmetric_root
from oracles import explicit_consistency as oracle_consistency
from oracles import explicit_loss as oracle_loss
from oracles import random_covariances

pytestmark = pytest.mark.any_device

N, M, C, A = 4, 3, 5, 2


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("with_bias", [True, False])
def test_explicit_loss_and_gradients_equal_the_loop(with_bias, soft):
    features = torch.randn(N, A, dtype=torch.float64).requires_grad_()
    weight = torch.randn(C, A, dtype=torch.float64).requires_grad_()
    bias = torch.randn(C, dtype=torch.float64).requires_grad_() if with_bias else None
    directions = torch.randn(N, M, A, dtype=torch.float64).requires_grad_()
    targets = torch.softmax(torch.randn(N, C, dtype=torch.float64), 1) if soft else torch.tensor([4, 0, 2, 0])
    actual = explicit_loss(features, targets, directions, weight, bias, strength=0.7)
    expected = oracle_loss(features, targets, directions, weight, bias, strength=0.7)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=0)
    inputs = [features, weight, directions] + ([bias] if with_bias else [])
    for mine, theirs in zip(torch.autograd.grad(actual, inputs), torch.autograd.grad(expected, inputs), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)


def test_a_tensor_strength_receives_its_gradient():
    features, weight = torch.randn(N, A, dtype=torch.float64), torch.randn(C, A, dtype=torch.float64)
    directions, targets = torch.randn(N, M, A, dtype=torch.float64), torch.tensor([4, 0, 2, 0])
    strength = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda s: explicit_loss(features, targets, directions, weight, strength=s), strength
    )


@pytest.mark.parametrize("soft", [False, True])
def test_gradients_with_fixed_directions_are_those_of_finite_differences(soft):
    inputs = [torch.randn(*shape, dtype=torch.float64).requires_grad_() for shape in ((N, A), (N, M, A), (C, A), (C,))]
    targets = torch.softmax(torch.randn(N, C, dtype=torch.float64), 1) if soft else torch.tensor([4, 0, 2, 0])
    assert torch.autograd.gradcheck(lambda a, d, w, b: explicit_loss(a, targets, d, w, b, strength=0.7), inputs)


def test_explicit_consistency_and_gradients_equal_the_loop():
    logits, weight, directions = (
        torch.randn(*shape, dtype=torch.float64).requires_grad_() for shape in ((N, C), (C, A), (N, M, A))
    )
    actual = explicit_consistency(logits, directions, weight, strength=0.7)
    prediction = torch.softmax(logits.detach(), 1)
    expected = torch.stack(oracle_consistency(logits, prediction, directions, weight, strength=0.7))
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=0)
    inputs, cotangent = [logits, weight, directions], torch.randn(N, dtype=torch.float64)
    mine, theirs = (torch.autograd.grad(loss @ cotangent, inputs) for loss in (actual, expected))
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_a_consistency_without_augmentation_is_the_entropy_and_moves_nothing():
    logits, weight = torch.randn(N, C, dtype=torch.float64).requires_grad_(), torch.randn(C, A, dtype=torch.float64)
    loss = explicit_consistency(logits, torch.zeros(N, M, A, dtype=torch.float64), weight, strength=0.7)
    p = torch.softmax(logits, 1)
    torch.testing.assert_close(loss, -(p * p.log()).sum(1))
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-15)


def quadrature(logits, shares, slope, strength):
    """E over e ~ N(0, 1) of -q.z + logsumexp(z) at z + sqrt(strength) e slope, by Gauss-Hermite quadrature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(120)
    total = 0.0
    for e, w in zip(nodes, weights, strict=True):
        z = logits + strength**0.5 * e * slope
        total = total + w / np.sqrt(2 * np.pi) * (torch.logsumexp(z, 0) - shares @ z)
    return total


@pytest.mark.parametrize("soft", [False, True])
def test_monte_carlo_agrees_with_quadrature_along_one_direction(soft):
    logits, weight = torch.randn(N, C, dtype=torch.float64), torch.randn(C, A, dtype=torch.float64)
    axes, targets, strength = torch.randn(N, A, dtype=torch.float64), torch.tensor([4, 0, 2, 0]), 1.5
    shares = torch.softmax(torch.randn(N, C, dtype=torch.float64), 1) if soft else F.one_hot(targets, C).double()
    directions = torch.randn(N, 20000, 1, dtype=torch.float64) * axes.unsqueeze(1)
    estimate = monte_carlo(logits, shares if soft else targets, directions, weight, strength)
    for i in range(N):
        exact = quadrature(logits[i], shares[i], weight @ axes[i], strength)
        assert 0 < estimate.standard_error[i] < 0.02
        assert abs(estimate.value[i] - exact) <= 4 * estimate.standard_error[i]


def test_standard_error_is_the_spread_of_the_estimate():
    logits, weight = torch.randn(1, C, dtype=torch.float64), torch.randn(C, A, dtype=torch.float64)
    repeats = 400
    directions = torch.randn(repeats, 50, A, dtype=torch.float64)
    estimate = monte_carlo(logits.expand(repeats, C), torch.zeros(repeats, dtype=torch.long), directions, weight, 1.0)
    ratio = estimate.standard_error.mean() / estimate.value.std()
    assert 0.85 < ratio < 1.15


def test_monte_carlo_without_variance_is_the_cross_entropy():
    logits, targets = torch.randn(N, C, dtype=torch.float64), torch.tensor([4, 0, 2, 0])
    estimate = monte_carlo(logits, targets, torch.zeros(N, M, A).double(), torch.randn(C, A).double(), 2.0)
    torch.testing.assert_close(estimate.value, F.cross_entropy(logits, targets, reduction="none"))
    assert not estimate.standard_error.any()


@pytest.mark.parametrize("rank", [1, 3, 6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_symmetric_root_exists_at_any_rank(rank, dtype):
    matrices = random_covariances(3, 6, rank=rank).to(dtype)
    matrices[2] = 0
    root = symmetric_root(matrices)
    tolerance = 2e-3 if dtype == torch.float32 else 1e-7  # of the root: rounding at zero eigenvalues grows by a root
    torch.testing.assert_close(root, root.mT, rtol=0, atol=tolerance)
    torch.testing.assert_close(root @ root, matrices, rtol=0, atol=1e-5 if dtype == torch.float32 else 1e-13)
    assert (torch.linalg.eigvalsh(root) > -tolerance).all()


@pytest.mark.parametrize("rank", [1, 3, 6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_covariance_root_is_triangular_and_keeps_variances_at_any_rank(rank, dtype):
    matrices = random_covariances(4, 6, rank=rank).to(dtype)
    matrices[2] = 0
    matrices[3, 1] = matrices[3, :, 1] = 0
    root = covariance_root(matrices)
    made = root @ root.mT
    assert torch.equal(root, root.tril())
    shrinkage = 2 * 6 * torch.finfo(dtype).eps
    diagonal = torch.diag_embed(matrices.diagonal(dim1=-2, dim2=-1))
    expected = (1 - shrinkage) * matrices + shrinkage * diagonal
    tolerance = {"rtol": 0, "atol": 4 * torch.finfo(dtype).eps * float(matrices.abs().max())}
    torch.testing.assert_close(made, expected, **tolerance)
    # Exactly zero where nothing varies: those coordinates and classes are not augmented.
    assert not root[2].any()
    assert not root[3, 1].any()


@pytest.mark.parametrize(("error", "shrinkage"), [(1e-4, 200 * 201 * 2**-23), (3e-2, 1.0)])
def test_covariance_root_exists_where_errors_make_a_matrix_indefinite(error, shrinkage):
    """Correlations of rank one with errors, whose eigenvalues fall below zero by more than the first shrinkage adds."""
    signs = torch.randn(3, 1, 200).sign()
    noise = error * torch.randn(3, 200, 200)
    correlation = signs.mT @ signs + (noise + noise.mT) / 2
    correlation.diagonal(dim1=1, dim2=2).fill_(1.0)
    assert (torch.linalg.eigvalsh(correlation.double())[:, 0] < -2 * 200 * 2**-23).all()
    deviations = torch.rand(3, 200) + 0.5
    root = covariance_root(correlation * deviations.unsqueeze(-1) * deviations.unsqueeze(-2))
    made = root @ root.mT / deviations.unsqueeze(-1) / deviations.unsqueeze(-2)
    expected = (1 - shrinkage) * correlation + shrinkage * torch.eye(200)
    torch.testing.assert_close(made, expected, rtol=0, atol=1e-5)
