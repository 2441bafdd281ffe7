"""The expected logistic loss of a Gaussian logit: against fine sums over the line and draws, and the bound above it."""

import math

import pytest
import torch

from isda.functional import binary_expectation, binary_jensen_bound, expected_softplus

pytestmark = pytest.mark.any_device

MEANS = torch.linspace(-9, 9, 19, dtype=torch.float64, device="cpu").tolist()


def numbers(values):
    return torch.tensor(values, dtype=torch.float64)


def integral(function, mean, variance):
    """E f(x) over x ~ N(mean, variance): a sum over steps of a hundredth of a standard deviation."""
    noise = torch.arange(-900, 901, dtype=torch.float64).view(-1, 1) / 100
    density = torch.exp(-noise.square() / 2) / math.sqrt(2 * math.pi)
    return (0.01 * density * function(mean + variance.sqrt() * noise)).sum(0)


def logistic(x):
    return torch.logaddexp(x, torch.zeros_like(x))


def naive_loss(logits, targets, pos_weight):
    """p q log(1 + exp(-z)) + (1 - q) log(1 + exp(z))."""
    return pos_weight * targets * logistic(-logits) + (1 - targets) * logistic(logits)


@pytest.mark.parametrize(
    ("deviation", "error"), [(0.0, 1e-13), (0.5, 1e-13), (1, 1e-13), (2, 3e-8), (3, 6e-6), (5, 5e-4)]
)
def test_the_quadrature_is_as_near_to_the_integral_as_it_says(deviation, error):
    means, variance = numbers(MEANS), numbers(deviation**2)
    ours = expected_softplus(means, variance.expand(len(MEANS)))
    assert (ours - integral(logistic, means, variance)).abs().max() < error


@pytest.mark.parametrize("deviation", [0.3, 1.0])
def test_its_derivatives_are_those_of_the_integral(deviation):
    means, variance = numbers(MEANS).requires_grad_(), numbers(deviation**2).requires_grad_()
    weights = torch.arange(1.0, len(MEANS) + 1, dtype=torch.float64)
    ours = torch.autograd.grad((weights * expected_softplus(means, variance)).sum(), (means, variance))
    theirs = torch.autograd.grad((weights * integral(logistic, means, variance)).sum(), (means, variance))
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_at_variance_zero_the_derivatives_are_finite():
    means, variance = numbers([-2.0, 0.0, 1.0]).requires_grad_(), torch.zeros(3, dtype=torch.float64).requires_grad_()
    value = expected_softplus(means, variance)
    torch.testing.assert_close(value, logistic(means))
    by_mean, by_variance = torch.autograd.grad(value.sum(), (means, variance))
    share = torch.sigmoid(means)
    torch.testing.assert_close(by_mean, share)
    torch.testing.assert_close(by_variance, share * (1 - share) / 2)


def test_it_is_differentiable_twice():
    means, variance = numbers([-0.5]).requires_grad_(), numbers([0.8]).requires_grad_()
    assert torch.autograd.gradgradcheck(expected_softplus, (means, variance))


ENTRIES = ([-3.0, -0.4, 0.0, 0.7, 5.0, -6.0], [1.0, 0.0, 1.0, 0.3, 0.0, 0.8], [0.5, 2.0, 0.1, 1.0, 1.5, 0.0])
PRESENT = [1.0, 3.0, 0.5, 2.0, 1.0, 4.0]


@pytest.mark.parametrize("weighted", [False, True])
def test_the_expected_loss_is_the_integral_of_the_loss(weighted):
    logits, targets, variance = map(numbers, ENTRIES)
    pos_weight = numbers(PRESENT) if weighted else None
    ours = binary_expectation(logits, targets, variance, 0.5, pos_weight)
    weight = numbers(PRESENT) if weighted else 1.0
    expected = integral(lambda x: naive_loss(x, targets, weight), logits, 0.5 * variance)
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_bound_is_its_formula_and_lies_above_the_expectation(weighted):
    logits, targets, variance = map(numbers, ENTRIES)
    weight = numbers(PRESENT) if weighted else numbers([1.0] * 6)
    added = 0.5 / 2 * variance
    expected = weight * targets * torch.log1p(torch.exp(-logits + added))
    expected = expected + (1 - targets) * torch.log1p(torch.exp(logits + added))
    bound = binary_jensen_bound(logits, targets, variance, 0.5, weight if weighted else None)
    torch.testing.assert_close(bound, expected)
    below = binary_expectation(logits, targets, variance, 0.5, weight if weighted else None)
    assert (below[:-1] < bound[:-1]).all()
    torch.testing.assert_close(below[-1], bound[-1])  # no variance


def test_the_expectation_is_what_draws_average_to():
    logits, targets, variance = (numbers(part).unsqueeze(1) for part in ENTRIES)
    noise = torch.randn(len(logits), 200_000, generator=torch.Generator("cpu").manual_seed(0), device="cpu").double()
    draws = naive_loss(logits + (0.5 * variance).sqrt() * noise.to(logits.device), targets, 1.0)
    error = draws.std(1) / math.sqrt(draws.shape[1])
    ours = binary_expectation(logits, targets, variance, 0.5).squeeze(1)
    assert ((ours - draws.mean(1)).abs() <= 4 * error + 1e-9).all()


@pytest.mark.parametrize("function", [binary_expectation, binary_jensen_bound])
def test_gradients_are_those_of_differences(function):
    logits, targets, variance = map(numbers, ENTRIES)
    variance = variance + 0.2
    inputs = (logits.requires_grad_(), variance.requires_grad_())
    pos_weight = numbers(PRESENT)
    assert torch.autograd.gradcheck(lambda z, v: function(z, targets, v, 0.7, pos_weight), inputs)


@pytest.mark.parametrize("function", [binary_expectation, binary_jensen_bound])
def test_a_certain_label_costs_little_and_not_nothing_in_float32(function):
    """log(1 + exp(-z)) of a large z is not the difference of two large numbers."""
    loss = function(torch.tensor([30.0, -30.0]), torch.tensor([1.0, 0.0]), torch.tensor([0.0, 0.0]), 1.0)
    torch.testing.assert_close(loss, torch.full((2,), math.exp(-30.0)), rtol=1e-4, atol=0)


@pytest.mark.parametrize("function", [binary_expectation, binary_jensen_bound])
def test_a_variance_of_the_labels_serves_all_samples(function):
    logits = torch.linspace(-2, 2, 12, dtype=torch.float64).view(2, 3, 2)
    targets = (logits > 0.3).double()
    variance = numbers([0.5, 1.0, 2.0]).view(3, 1).requires_grad_()
    function(logits, targets, variance, 1.0).sum().backward()
    wide = variance.detach().expand(2, 3, 2).clone().requires_grad_()
    function(logits, targets, wide, 1.0).sum().backward()
    torch.testing.assert_close(variance.grad, wide.grad.sum((0, 2)).view(3, 1))
