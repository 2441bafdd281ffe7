"""The convex objective: its value by loops, its derivatives by finite differences, its convexity along lines."""

from __future__ import annotations

import pytest
import torch
from convex_cases import NAMES, both_rows, least_tilted_value, matrices_of, objective, problem, repeated, rows_of

import oracles
from isda import covariance
from isda.estimator.covariances import row_covariances
from isda.estimator.objective import ConvexObjective

BOUNDS = ("jensen", "tilted")
every_name = pytest.mark.parametrize("name", NAMES)
every_bound = pytest.mark.parametrize("bound", BOUNDS)
two_or_more = pytest.mark.parametrize("num_classes", [2, 4])


def point(made, seed=1):
    return torch.randn(made.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@every_name
@two_or_more
def test_the_published_bound_equals_the_loops(name, num_classes):
    inputs, labels, counts, weights = problem(num_classes, weighted=True)
    rows = rows_of(inputs, labels, counts, weights, num_classes)
    made = ConvexObjective(rows, row_covariances(name, rows), strength=0.7, penalty=0.2, bound="jensen")
    parameters = point(made)
    weight, intercept = both_rows(parameters)
    many, their_labels, their_weights = repeated(inputs, labels, counts, weights)
    sigmas = matrices_of(name, many, their_labels, num_classes)
    losses = oracles.jensen_bound(many @ weight.t() + intercept, their_labels, weight, sigmas, 0.7)
    expected = (their_weights * losses).sum() / their_weights.sum() + 0.1 * parameters[:, :-1].square().sum()
    assert made.evaluate(parameters)[0] == pytest.approx(float(expected), rel=1e-10)


@every_name
def test_the_tilted_bound_is_the_least_over_all_tilts(name):
    inputs, labels, counts, weights = problem(3, n=8)
    rows = rows_of(inputs, labels, counts, weights, 3)
    made = ConvexObjective(rows, row_covariances(name, rows), strength=0.7, penalty=0.0, bound="tilted")
    parameters = point(made)
    weight, intercept = both_rows(parameters)
    logits, sigmas = inputs @ weight.t() + intercept, matrices_of(name, inputs, labels, 3)
    least = [least_tilted_value(z, weight, sigmas[y], 0.7) - float(z[y]) for z, y in zip(logits, labels, strict=True)]
    value = made.evaluate(parameters)[0]
    assert value == pytest.approx(sum(least) / len(least), rel=1e-8)
    published = ConvexObjective(rows, row_covariances(name, rows), strength=0.7, penalty=0.0, bound="jensen")
    assert value < published.evaluate(parameters)[0]


def five_points(function, step):
    """f'(0), and a bound of the error that the length of the step makes.

    From values at -2, -1, 1 and 2 steps; the error is step**4 f^(5) / 30, and that of steps twice as long 16 times it.
    """

    def difference(step):
        low, below, above, high = (function(place * step) for place in (-2, -1, 1, 2))
        return torch.as_tensor((8 * (above - below) - (high - low)) / (12 * step), dtype=torch.float64)

    found = difference(step)
    return found, float((found - difference(2 * step)).abs().max())


def gradient_error(made, parameters):
    """How far a gradient may be off: rounding, and for the tilted bound where the search for the tilt stops.

    converged_tilt stops at |d|_K <= eps**(3/4) sqrt(max K_jj), K = lambda W Sigma W', and the gradient in W moves by
    lambda Sigma W' d, which is at most sqrt(lambda |Sigma|) |d|_K.
    """
    epsilon, weight = torch.finfo(torch.float64).eps, both_rows(parameters)[0]
    if not made.tilted:
        return epsilon * 100 * float(made.evaluate(parameters)[1].abs().max())
    sigma = made.strength * made.rows.inputs.square().sum(1).max()  # no covariance exceeds the largest square
    return float(sigma * weight.square().sum(1).max().sqrt()) * epsilon**0.75


@every_name
@every_bound
@two_or_more
def test_gradient_and_hessian_products_equal_finite_differences(name, bound, num_classes):
    made = objective(name, bound, num_classes)
    parameters, direction, step = point(made), point(made, 2), 1e-3
    value, gradient, *_ = made.evaluate(parameters)
    slope, truncation = five_points(lambda length: made.evaluate(parameters + length * direction)[0], step)
    rounding = 100 * torch.finfo(torch.float64).eps * abs(value) / step
    assert float((gradient * direction).sum()) == pytest.approx(float(slope), rel=0, abs=truncation + rounding)
    curved, truncation = five_points(lambda length: made.evaluate(parameters + length * direction)[1], step)
    error = truncation + 1.5 * gradient_error(made, parameters) / step
    assert error < 1e-5 * float(curved.abs().max()), "too coarse to find anything"
    product = made.hessian_product(parameters)(direction)
    torch.testing.assert_close(product, curved, rtol=0, atol=error)


def test_plain_cross_entropy_has_the_same_derivatives_under_both_bounds():
    made = [objective("full", bound, strength=0.0) for bound in BOUNDS]
    parameters, direction = point(made[0]), point(made[0], 2)
    for one in made:
        inputs, labels = one.rows.inputs, one.rows.labels
        free = parameters.clone().requires_grad_()
        losses = torch.nn.functional.cross_entropy(inputs @ free[:, :-1].t() + free[:, -1], labels, reduction="none")
        total = (losses * one.rows.loss_weights).sum() + 0.05 * free[:, :-1].square().sum()
        (gradient,) = torch.autograd.grad(total, free, create_graph=True)
        (product,) = torch.autograd.grad((gradient * direction).sum(), free)
        torch.testing.assert_close(one.evaluate(parameters)[1], gradient.detach(), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(one.hessian_product(parameters)(direction), product, rtol=1e-9, atol=1e-12)


@every_name
@every_bound
def test_it_is_convex_along_lines(name, bound):
    made = objective(name, bound)
    for seed in range(5):
        here, there = 2 * point(made, seed), 2 * point(made, seed + 100)
        middle = made.evaluate((here + there) / 2)[0]
        assert middle <= (made.evaluate(here)[0] + made.evaluate(there)[0]) / 2 + 1e-12
        direction = there - here
        assert float((direction * made.hessian_product(here)(direction)).sum()) > 0


@every_name
def test_the_covariances_are_those_of_the_module_by_this_name(name):
    inputs, labels, counts, weights = problem(4, n=40)
    rows = rows_of(inputs, labels, counts, weights, 4)
    model = covariance.create(name, 4, inputs.shape[1], dtype=torch.float64)
    model.update(inputs, labels)
    weight = torch.randn(4, inputs.shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    table = row_covariances(name, rows).margins(weight, rows.inputs @ weight.t())
    torch.testing.assert_close(table, model.margin_variance(weight, range(4)), rtol=1e-9, atol=1e-11)


@every_bound
def test_a_class_without_rows_is_no_obstacle(bound):
    inputs, labels, counts, weights = problem(3)
    keep = labels != 1
    rows = rows_of(inputs[keep], labels[keep], counts[keep], weights[keep], 3)
    for name in NAMES:
        made = ConvexObjective(rows, row_covariances(name, rows), strength=1.0, penalty=0.1, bound=bound)
        value, gradient, *_ = made.evaluate(point(made))
        assert torch.isfinite(gradient).all()
        assert 0 < value < float("inf")
