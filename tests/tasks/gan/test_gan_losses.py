"""Every loss of the players against its formula, written naively in float64, gradients included."""

from __future__ import annotations

import math

import pytest
import torch
from torch.autograd import gradcheck

from isda.lab.tasks.gan.methods import (
    code_loss,
    gradient_penalty,
    logistic_discriminator,
    logistic_generator,
    wasserstein_critic,
    wasserstein_generator,
)


def scores(count):
    return torch.randn(count, dtype=torch.float64, requires_grad=True)


def sigmoid(value):
    return 1 / (1 + math.exp(-value))


def test_logistic_losses_are_their_formulas():
    real, made = scores(5), scores(7)
    expected = -sum(math.log(sigmoid(s)) for s in real.tolist()) / 5
    expected -= sum(math.log(1 - sigmoid(s)) for s in made.tolist()) / 7
    assert logistic_discriminator(real, made).item() == pytest.approx(expected, rel=1e-12)
    expected = -sum(math.log(sigmoid(s)) for s in made.tolist()) / 7
    assert logistic_generator(made).item() == pytest.approx(expected, rel=1e-12)
    assert gradcheck(logistic_discriminator, (real, made))
    assert gradcheck(logistic_generator, (made,))


def test_logistic_losses_stay_finite_at_any_score():
    far = torch.tensor([-1e4, 1e4])
    assert logistic_discriminator(far, far).isfinite()
    assert logistic_generator(far).isfinite()


def test_wasserstein_losses_are_their_formulas():
    real, made = scores(5), scores(7)
    expected = sum(made.tolist()) / 7 - sum(real.tolist()) / 5
    assert wasserstein_critic(real, made).item() == pytest.approx(expected, rel=1e-12)
    assert wasserstein_generator(made).item() == pytest.approx(-sum(made.tolist()) / 7, rel=1e-12)
    assert gradcheck(wasserstein_critic, (real, made))


def test_gradient_penalty_is_its_formula_for_a_critic_whose_slope_is_known():
    """f(x) = w.x + a |x|^2 / 2 has the slope w + a x."""
    torch.manual_seed(0)
    real, made = torch.randn(2, 3, 2, 2, 2, dtype=torch.float64)
    share = torch.rand(3, dtype=torch.float64)
    weight = torch.randn(8, dtype=torch.float64)

    def critic(images):
        rows = images.flatten(1)
        return rows @ weight + 0.35 * rows.square().sum(1)

    expected = 0.0
    for i in range(3):
        between = share[i] * real[i].flatten() + (1 - share[i]) * made[i].flatten()
        expected += float(((weight + 0.7 * between).norm() - 1) ** 2) / 3
    assert gradient_penalty(critic, real, made, share).item() == pytest.approx(expected, rel=1e-10)


def test_gradient_penalty_has_the_right_slope_by_double_backward():
    """With respect to the critic's weights; and nothing flows into the images."""
    torch.manual_seed(0)
    real, made = torch.randn(2, 3, 1, 2, 2, dtype=torch.float64)
    share = torch.rand(3, dtype=torch.float64)

    def penalty(first, second):
        def critic(images):
            return (images.flatten(1) @ first).tanh() @ second

        return gradient_penalty(critic, real, made, share)

    first = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    second = torch.randn(5, dtype=torch.float64, requires_grad=True)
    assert gradcheck(penalty, (first, second))
    made.requires_grad_()
    penalty(first, second).backward()
    assert made.grad is None


def test_gradient_penalty_of_a_flat_critic_has_a_finite_slope():
    weight = torch.zeros(4, requires_grad=True)
    images = torch.randn(3, 1, 2, 2)
    penalty = gradient_penalty(lambda x: x.flatten(1) @ weight, images, images, torch.rand(3))
    penalty.backward()
    assert penalty == 1
    assert weight.grad.isfinite().all()


def test_code_loss_is_the_gaussian_likelihood():
    mean, log_variance, codes = (torch.randn(4, 2, dtype=torch.float64, requires_grad=True) for _ in range(3))
    expected = 0.0
    for i in range(4):
        for j in range(2):
            m, v, c = float(mean[i, j]), math.exp(float(log_variance[i, j])), float(codes[i, j])
            expected -= math.log(math.exp(-((c - m) ** 2) / (2 * v)) / math.sqrt(2 * math.pi * v)) / 4
    assert code_loss(mean, log_variance, codes).item() == pytest.approx(expected, rel=1e-12)
    assert gradcheck(code_loss, (mean, log_variance, codes))
