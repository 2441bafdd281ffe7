"""The supervised bounds: as published and tilted, at fixed tilts, at the minimum, and against the true expectation."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from isda.functional import augmented_logits, jensen_bound, margin_variance, monte_carlo, tilted_bound
from isda.functional.bounds import margin_from_gram
from isda.functional.grouping import Groups, group_rows
from isda.functional.tables import quadratic_tables
from isda.functional.tilt import find_tilt
from oracles import jensen_bound as oracle_jensen
from oracles import margin_variance as oracle_margin
from oracles import minimum_of_tilt, random_covariances, tilted_value
from oracles import tilted_bound as oracle_tilted

N, C, A = 6, 4, 3


class Matrices:
    """What the bounds ask of a covariance model, by plain products with a (C, A, A) tensor."""

    def __init__(self, matrices: torch.Tensor, route: str) -> None:
        self.matrices, self.route = matrices, route

    def variances(self, weight, matrices):
        return torch.einsum("ja,kab,jb->kj", weight, self.matrices[matrices], weight)

    def gram(self, weight, matrices):
        assert self.route == "gram"
        return torch.einsum("ia,kab,jb->kij", weight, self.matrices[matrices], weight)

    def transform(self, groups: Groups):
        assert self.route == "product"
        return lambda rows: torch.einsum("na,nab->nb", rows, self.matrices[groups.classes[groups.slot]])

    def transform_stacks(self, rows, matrices):
        assert self.route == "product"
        return rows @ self.matrices[matrices]

    def projected(self, weight, matrices):
        return None

    def prefers_gram(self, rows, matrices):
        return self.route == "gram"

    def groups(self, classes):
        return group_rows(classes, len(self.matrices))

    def buffers(self):
        return iter((self.matrices,))


@pytest.fixture(params=["gram", "product"])
def route(request):
    return request.param


def problem(seed: int = 0, weight_scale: float = 1.0, logit_scale: float = 1.0, rank: int | None = None):
    generator = torch.Generator().manual_seed(seed)
    weight = weight_scale * torch.randn(C, A, generator=generator, dtype=torch.float64)
    logits = logit_scale * torch.randn(N, C, generator=generator, dtype=torch.float64)
    targets = torch.randint(C, (N,), generator=generator)
    covariances = random_covariances(C, A, rank=rank, generator=generator)
    return logits.requires_grad_(), targets, weight.requires_grad_(), covariances


def assert_same_with_gradients(actual, expected, inputs, tolerance=1e-10):
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
    pull = torch.rand_like(expected)
    for mine, theirs in zip(
        torch.autograd.grad(actual, inputs, pull), torch.autograd.grad(expected, inputs, pull), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)


def test_jensen_bound_and_gradients_equal_the_oracle():
    logits, targets, weight, covariances = problem()
    actual = jensen_bound(logits, targets, margin_variance(weight, covariances, targets), 0.8)
    assert_same_with_gradients(actual, oracle_jensen(logits, targets, weight, covariances, 0.8), (logits, weight))


def test_augmented_logits_take_a_number_or_a_tensor_as_strength():
    logits, variance = torch.randn(N, C, dtype=torch.float64), torch.rand(N, C, dtype=torch.float64)
    strength = torch.tensor(0.6, dtype=torch.float64, requires_grad=True)
    expected = torch.tensor(
        [[z + 0.3 * v for z, v in zip(*rows, strict=True)] for rows in zip(logits, variance, strict=True)]
    )
    torch.testing.assert_close(augmented_logits(logits, variance, 0.6), expected)
    result = augmented_logits(logits, variance, strength)
    torch.testing.assert_close(result.detach(), expected)
    torch.testing.assert_close(torch.autograd.grad(result.sum(), strength)[0], variance.sum() / 2)


def test_margin_from_gram_is_the_table_of_all_pairs():
    _, _, weight, covariances = problem()
    table = margin_from_gram(weight @ covariances[2] @ weight.T)
    expected = oracle_margin(weight, covariances[2].expand(C, A, A), list(range(C)))
    torch.testing.assert_close(table, expected, rtol=0, atol=1e-12)
    assert (table.diagonal() == 0).all()


def test_tilted_bound_without_steps_is_the_published_bound(route):
    logits, targets, weight, covariances = problem()
    actual = tilted_bound(logits, targets, weight, Matrices(covariances, route), 0.8, steps=0)
    assert_same_with_gradients(actual, oracle_jensen(logits, targets, weight, covariances, 0.8), (logits, weight))


@pytest.mark.parametrize("steps", [1, 3])
def test_tilted_bound_and_gradients_equal_the_oracle_at_the_tilt_it_found(route, steps):
    logits, targets, weight, covariances = problem()
    model, strength = Matrices(covariances, route), 0.8
    start = F.one_hot(targets, C).double()
    tables = quadratic_tables(weight, model, model.groups(targets))
    tilts = find_tilt(logits.detach(), tables, start, strength, steps)
    assert (tilts - start).abs().max() > 0.05  # it did move
    actual = tilted_bound(logits, targets, weight, model, strength, steps)
    expected = oracle_tilted(logits, start, targets, tilts, weight, covariances, strength)
    assert_same_with_gradients(actual, expected, (logits, weight))


def test_gradient_flows_into_covariances_that_ask_for_it(route):
    logits, targets, weight, _ = problem()
    factor = torch.randn(C, A, 2, dtype=torch.float64).requires_grad_()
    model = Matrices(factor @ factor.mT, route)
    start = F.one_hot(targets, C).double()
    tilts = find_tilt(logits.detach(), quadratic_tables(weight, model, model.groups(targets)), start, 0.8)
    actual = tilted_bound(logits, targets, weight, model, 0.8)
    expected = oracle_tilted(logits, start, targets, tilts, weight, factor @ factor.mT, 0.8)
    assert_same_with_gradients(actual, expected, (logits, weight, factor))


def test_gram_and_product_routes_agree():
    logits, targets, weight, covariances = problem()
    by_gram, by_product = (
        tilted_bound(logits, targets, weight, Matrices(covariances, r), 0.8) for r in ("gram", "product")
    )
    assert_same_with_gradients(by_gram, by_product, (logits, weight))


def test_product_route_equals_the_plain_sum_over_classes(route):
    _, targets, weight, covariances = problem()
    model = Matrices(covariances, route)
    tilts = torch.softmax(torch.randn(N, C, dtype=torch.float64), 1)
    tables = quadratic_tables(weight, model, model.groups(targets))
    middle = weight.mean(0)  # the forms are those of the centred weights
    for i, y in enumerate(targets.tolist()):
        bar = sum(t * (w - middle) for t, w in zip(tilts[i], weight, strict=True))
        expected = torch.stack([(w - middle) @ covariances[y] @ bar for w in weight])
        torch.testing.assert_close(tables.product(tilts)[i], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("weight_scale", [0.3, 3.0, 10.0])  # at 10 single steps do make F worse
def test_tilts_lie_on_the_simplex_and_more_steps_are_never_worse(route, weight_scale):
    logits, targets, weight, covariances = problem(weight_scale=weight_scale)
    model = Matrices(covariances, route)
    tables = quadratic_tables(weight, model, model.groups(targets))
    start, previous = F.one_hot(targets, C).double(), torch.full((N,), torch.inf).double()
    for steps in range(7):
        tilts = find_tilt(logits.detach(), tables, start, 2.0, steps)
        assert (tilts >= 0).all()
        torch.testing.assert_close(tilts.sum(1), torch.ones(N).double())
        value = torch.stack(
            [
                tilted_value(z, t, weight, covariances[y], 2.0)
                for z, t, y in zip(logits, tilts, targets.tolist(), strict=True)
            ]
        ).detach()
        assert (value <= previous * (1 + 1e-12)).all()
        previous = value


@pytest.mark.parametrize("weight_scale", [0.3, 1.0, 3.0])  # at 3 variances of the margins reach a hundred
def test_converged_tilt_attains_the_minimum(weight_scale):
    logits, targets, weight, covariances = problem(weight_scale=weight_scale)
    actual = tilted_bound(logits, targets, weight, Matrices(covariances, "gram"), 1.0, steps=200)
    for i, y in enumerate(targets.tolist()):
        expected = minimum_of_tilt(logits[i], weight, covariances[y], 1.0) - logits[i, y].item()
        assert actual[i].item() == pytest.approx(expected, abs=1e-6)
        assert actual[i].item() <= expected + 1e-10


def test_three_steps_close_most_of_the_gap_also_where_newton_steps_would_cycle():
    logits, targets, weight, covariances = problem()
    tilted = tilted_bound(logits, targets, weight, Matrices(covariances, "gram"), 1.0, steps=3)
    jensen = oracle_jensen(logits, targets, weight, covariances, 1.0)
    for i, y in enumerate(targets.tolist()):
        least = minimum_of_tilt(logits[i], weight, covariances[y], 1.0) - logits[i, y].item()
        assert tilted[i].item() - least <= 0.05 * (jensen[i].item() - least)


def test_gradient_at_the_converged_tilt_is_that_of_the_minimum():
    logits, targets, weight, covariances = problem(seed=1)
    logits, targets = logits.detach()[:2].requires_grad_(), targets[:2]
    loss = tilted_bound(logits, targets, weight, Matrices(covariances, "gram"), 1.0, steps=200).sum()
    gradients = torch.autograd.grad(loss, (logits, weight))

    def minimum(z, w):
        return sum(
            minimum_of_tilt(row, w, covariances[y], 1.0) - row[y].item()
            for row, y in zip(z, targets.tolist(), strict=True)
        )

    z, w, step = logits.detach(), weight.detach(), 1e-4
    for which, gradient in enumerate(gradients):
        for index in torch.cartesian_prod(*(torch.arange(s) for s in gradient.shape)).tolist():
            shift = torch.zeros_like(gradient)
            shift[tuple(index)] = step
            up, down = ((z + s * shift, w) if which == 0 else (z, w + s * shift) for s in (1, -1))
            difference = (minimum(*up) - minimum(*down)) / (2 * step)
            assert gradient[tuple(index)].item() == pytest.approx(difference, abs=1e-6)


scales = st.floats(-3, 1.5).map(lambda power: 10**power)


@given(
    seed=st.integers(0, 2**31),
    weight_scale=scales,
    logit_scale=scales,
    strength=st.floats(0.01, 10),
    rank=st.integers(1, A),
    route=st.sampled_from(["gram", "product"]),
    steps=st.integers(1, 5),
)
def test_tilted_is_never_above_jensen_and_never_below_monte_carlo(
    seed, weight_scale, logit_scale, strength, rank, route, steps
):
    logits, targets, weight, covariances = problem(seed, weight_scale, logit_scale, rank)
    jensen = oracle_jensen(logits, targets, weight, covariances, strength).detach()
    tilted = tilted_bound(logits, targets, weight, Matrices(covariances, route), strength, steps).detach()
    assert (tilted <= jensen * (1 + 1e-12) + 1e-12).all()
    assert (tilted >= -1e-12).all()
    roots = torch.stack([torch.linalg.cholesky(s + 1e-14 * torch.eye(A)) for s in covariances[targets]])
    noise = torch.randn(N, 4000, A, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    estimate = monte_carlo(logits.detach(), targets, noise @ roots.mT, weight.detach(), strength)
    assert (tilted >= estimate.value - 4 * estimate.standard_error - 1e-9 * (1 + jensen)).all()


@given(seed=st.integers(0, 2**31), weight_scale=scales, logit_scale=scales, strength=st.floats(0.01, 10))
def test_float32_tilted_is_never_above_jensen_beyond_rounding(seed, weight_scale, logit_scale, strength):
    logits, targets, weight, covariances = (
        t.detach().float() if t.is_floating_point() else t for t in problem(seed, weight_scale, logit_scale)
    )
    for route in ("gram", "product"):
        tilted = tilted_bound(logits, targets, weight, Matrices(covariances, route), strength)
        jensen = oracle_jensen(logits, targets, weight, covariances, strength)
        assert torch.isfinite(tilted).all()
        assert (tilted <= jensen * (1 + 1e-5) + 1e-5 * (1 + logits.abs().amax(1))).all()


def test_no_variance_gives_the_cross_entropy():
    logits, targets, weight, covariances = problem()
    for matrices, strength in ((torch.zeros_like(covariances), 1.0), (covariances, 0.0)):
        actual = tilted_bound(logits, targets, weight, Matrices(matrices, "gram"), strength)
        assert_same_with_gradients(actual, F.cross_entropy(logits, targets, reduction="none"), (logits,))
