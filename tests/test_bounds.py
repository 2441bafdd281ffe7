"""Prop. 1, Prop. 2 and the tilted bound against brute-force oracles, and where they lie among each other."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import oracles
from isda import bounds
from isda.covariance import FullCovariance, Groups, base
from loss_cases import BOUNDS, KINDS, assert_same_with_gradients, integers, learned, normal

SIZES = [(4, 5, 6), (4, 5, 24), (6, 3, 5), (2, 1, 4), (1, 2, 3)]
"""Classes, features, rows: with fewer rows than a table has, and with more; with more classes than features."""


def problem(num_classes: int, dim: int, rows: int, seed: int = 5, scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, weight and labels; the logits are not those of any features."""
    logits = (2 * normal(rows, num_classes, seed=seed)).requires_grad_()
    weight = (scale * normal(num_classes, dim, seed=seed + 1) + 1).requires_grad_()
    return logits, weight, integers(num_classes, rows, seed=seed + 2)


def of_matrices(covariances: Tensor) -> FullCovariance:
    """A model with given covariances."""
    model = FullCovariance(*covariances.shape[:2], dtype=covariances.dtype)
    model.scatter.copy_(covariances)
    model.count.fill_(1)
    return model


def jensen_rows(logits, weight, model, labels, strength):
    """The published bound, put together of the library's parts as ISDALoss does."""
    variance = model.margins(weight, labels)
    return bounds.augmented_logits(logits, variance, strength).logsumexp(1) - logits.gather(1, labels[:, None])[:, 0]


def tilted_variances(logits, weight, model, labels, strength, **settings):
    groups = Groups.of(labels, logits.shape[1])
    margins, forms = bounds.margin_forms(weight, model, groups, labels)
    return bounds.tilted_variance(logits.detach(), margins, forms, labels, strength, **settings)


def tilted_rows(logits, weight, model, labels, strength, **settings):
    """The tilted bound."""
    variance = tilted_variances(logits, weight, model, labels, strength, **settings)
    return bounds.augmented_logits(logits, variance, strength).logsumexp(1) - logits.gather(1, labels[:, None])[:, 0]


def minima(logits, weight, covariances, labels, strength):
    """(N,) the least value that the tilted bound has."""
    return torch.tensor(
        [
            oracles.minimum_of_tilt(z, weight, covariances[y], strength) - z[y].item()
            for z, y in zip(logits, labels.tolist(), strict=True)
        ]
    ).double()


# -- the cross-entropy of a bound ------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("soft", [False, True])
def test_expected_cross_entropy_is_the_sum_over_classes(soft, smoothing, weighted, reduction):
    logits, augmented = normal(6, 3, seed=1).requires_grad_(), (normal(6, 3, seed=2) + 2).requires_grad_()
    targets = torch.softmax(normal(6, 3, seed=4), 1) if soft else integers(3, 6, seed=4)
    if not soft:
        targets[1] = 7
    settings = {
        "class_weight": torch.tensor([0.3, 1.0, 2.5]).double() if weighted else None,
        "ignore_index": 7,
        "reduction": reduction,
        "label_smoothing": smoothing,
    }
    actual = bounds.expected_cross_entropy(augmented, logits, targets, **settings)
    expected = oracles.reduced_loss(augmented, logits, targets, **settings)
    assert_same_with_gradients(actual, expected, (augmented, logits))


@pytest.mark.parametrize("soft", [False, True])
def test_expected_cross_entropy_of_the_logits_themselves_is_torchs(soft):
    logits = normal(2, 3, 4, 5, seed=1)
    targets = torch.softmax(normal(2, 3, 4, 5, seed=2), 1) if soft else integers(3, 2, 4, 5, seed=2)
    settings = {"label_smoothing": 0.1, "reduction": "mean"}
    weights = torch.tensor([0.3, 1.0, 2.5]).double()
    actual = bounds.expected_cross_entropy(logits, logits, targets, class_weight=weights, **settings)
    torch.testing.assert_close(actual, F.cross_entropy(logits, targets, weights, **settings))


def test_one_minus_infinite_logit_has_a_finite_expected_cross_entropy():
    logits = normal(2, 3, seed=1)
    logits[0, 2] = -math.inf
    loss = bounds.expected_cross_entropy(logits + 1, logits, torch.tensor([0, 1]))
    torch.testing.assert_close(loss, F.cross_entropy(logits, torch.tensor([0, 1])) + 1)


# -- tables and forms ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_pair_variances_are_those_of_all_pairs(kind):
    model, sigmas = learned(kind, 4, 3)
    weight, classes = (normal(4, 3, seed=1) + 3).requires_grad_(), [2, 0]
    actual = bounds.pair_variances(bounds.class_tables(weight, model, torch.tensor(classes)))
    expected = torch.stack(
        [torch.stack([(weight - weight[i]) @ sigmas[c] @ (weight - weight[i]).t() for i in range(4)]) for c in classes]
    ).diagonal(dim1=2, dim2=3)
    assert_same_with_gradients(actual, expected, (weight, *model.parameters()))


@pytest.mark.parametrize("size", SIZES[:3])
@pytest.mark.parametrize("kind", KINDS)
def test_forms_and_margins_are_their_definition_whatever_the_route(kind, size):
    (_, weight, labels), (model, sigmas) = problem(*size), learned(kind, *size[:2])
    groups = Groups.of(labels, size[0])
    margins, forms = bounds.margin_forms(weight, model, groups, labels)
    expected = oracles.margin_variance(weight, sigmas, labels.tolist())
    assert_same_with_gradients(margins, expected, (weight, *model.parameters()))
    x = normal(size[2], size[0], seed=8)
    x = x - x.mean(1, keepdim=True)
    rows = [(weight - weight[y]) @ sigmas[y] @ (row @ weight) for row, y in zip(x, labels.tolist(), strict=True)]
    assert_same_with_gradients(forms(x), torch.stack(rows), (weight, *model.parameters()))


# -- Prop. 1 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_prop_1_equals_its_equation(kind, size):
    (logits, weight, labels), (model, sigmas) = problem(*size), learned(kind, *size[:2])
    leaves = (logits,) if size[0] == 1 else (logits, weight, *model.parameters())
    actual = jensen_rows(logits, weight, model, labels, 0.7)
    expected = oracles.jensen_bound(logits, labels, weight, sigmas, 0.7)
    if size[0] == 1:
        torch.testing.assert_close(actual, expected)
    else:
        assert_same_with_gradients(actual, expected, leaves)


def test_a_strength_may_be_a_tensor():
    logits, variance = normal(3, 4, seed=1), normal(3, 4, seed=2).square()
    actual = bounds.augmented_logits(logits, variance, torch.tensor(0.6).double())
    torch.testing.assert_close(actual, logits + 0.3 * variance)


# -- the tilted bound ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [False, True])
@pytest.mark.parametrize("size", [(4, 5, 6), (4, 5, 24), (3, 2, 8)])
@pytest.mark.parametrize("kind", KINDS)
def test_the_tilted_bound_is_that_of_a_tilt_on_the_simplex_with_its_gradients(kind, size, start):
    (logits, weight, labels), (model, sigmas) = problem(*size), learned(kind, *size[:2])
    prediction = torch.softmax(logits.detach(), 1) if start else None
    variance = tilted_variances(logits, weight, model, labels, 0.7, start=prediction)
    fixed = weight.detach(), sigmas.detach()
    tilts = torch.stack(
        [oracles.tilt_behind(v, fixed[0], fixed[1][y], y) for v, y in zip(variance.detach(), labels, strict=True)]
    )
    assert tilts.min() > -1e-7
    torch.testing.assert_close(tilts.sum(1), torch.ones(size[2]).double())
    assert (tilts.max(1).values < 0.99).any(), "some have moved away from the label"
    shares = F.one_hot(labels, size[0]).double()
    expected = oracles.tilted_bound(logits, shares, labels, tilts, weight, sigmas, 0.7)
    actual = tilted_rows(logits, weight, model, labels, 0.7, start=prediction)
    assert_same_with_gradients(actual, expected, (logits, weight, *model.parameters()), atol=1e-7, rtol=1e-7)


scales = st.floats(-2, 1).map(lambda power: 10**power)


@given(seed=st.integers(0, 2**31), scale=scales, strength=st.floats(0.01, 10), rank=st.integers(1, 5))
def test_tilted_is_never_above_jensen_and_never_below_monte_carlo(seed, scale, strength, rank):
    logits, weight, labels = problem(6, 5, 8, seed, scale)
    covariances = oracles.random_covariances(6, 5, rank=rank, generator=torch.Generator().manual_seed(seed))
    model = of_matrices(covariances)
    jensen = oracles.jensen_bound(logits, labels, weight, covariances, strength).detach()
    tilted = tilted_rows(logits, weight, model, labels, strength).detach()
    slack = 1e-9 * (1 + jensen)
    assert (tilted <= jensen + slack).all()
    noise = model.sample(labels, 4000, generator=torch.Generator().manual_seed(seed))
    drawn = logits.detach().unsqueeze(1) + strength**0.5 * noise @ weight.detach().t()
    losses = drawn.logsumexp(2) - drawn.gather(2, labels.view(-1, 1, 1).expand(-1, 4000, 1)).squeeze(2)
    assert (tilted >= losses.mean(1) - 4.5 * losses.std(1) / 4000**0.5 - slack).all()


@pytest.mark.parametrize(("num_classes", "dim", "scale"), [(4, 6, 0.5), (10, 12, 0.7)])
def test_the_search_ends_near_the_minimum(num_classes, dim, scale):
    weight = scale * normal(num_classes, dim, seed=1)
    logits, labels = normal(5, dim, seed=2) @ weight.t(), integers(num_classes, 5, seed=3)
    covariances = oracles.random_covariances(num_classes, dim, generator=torch.Generator().manual_seed(4))
    model, strength = of_matrices(covariances), 0.5
    least = minima(logits, weight, covariances, labels, strength)
    tilted = tilted_rows(logits, weight, model, labels, strength)
    jensen = jensen_rows(logits, weight, model, labels, strength)
    assert (tilted - least).min() > -1e-9
    assert (tilted - least).max() < 0.1 * (jensen - least).max()


def test_more_steps_are_never_worse_and_no_steps_are_the_published_bound():
    logits, weight, labels = problem(6, 5, 16)
    model, _ = learned("full", 6, 5)
    values = [
        tilted_rows(logits, weight, model, labels, 2.0, steps=steps)
        for steps in ((), bounds.STEPS[:1], bounds.STEPS[:2], bounds.STEPS, bounds.STEPS + (math.inf,) * 5)
    ]
    torch.testing.assert_close(values[0], jensen_rows(logits, weight, model, labels, 2.0))
    for before, after in pairwise(values):
        assert (after <= before + 1e-12).all()
    assert (values[0] - values[3]).mean() > 0.1


def test_a_row_of_the_search_does_not_depend_on_the_others():
    logits, weight, labels = problem(4, 5, 24)
    model, _ = learned("full", 4, 5)
    together = tilted_variances(logits, weight, model, labels, 0.7)
    for i in range(3):
        alone = tilted_variances(logits[i : i + 1], weight, model, labels[i : i + 1], 0.7)
        torch.testing.assert_close(alone, together[i : i + 1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("power", [-3, 0, 3])
def test_in_float32_it_is_finite_and_never_above_the_published_bound_at_any_scale(power):
    logits, weight, labels = (t.detach() for t in problem(6, 5, 16, scale=10**power))
    covariances = oracles.random_covariances(6, 5, rank=2, generator=torch.Generator().manual_seed(4)).float()
    logits, weight = logits.float(), weight.float()
    model = of_matrices(covariances)
    tilted = tilted_rows(logits, weight, model, labels, 2.0)
    assert tilted.isfinite().all()
    assert (tilted <= jensen_rows(logits, weight, model, labels, 2.0) * (1 + 1e-4) + 1e-4).all()


@pytest.mark.parametrize("strength", [0.0, 1.0])
def test_without_variance_it_is_the_cross_entropy(strength):
    logits, weight, labels = problem(4, 5, 6)
    model = of_matrices(oracles.random_covariances(4, 5) * (strength == 0))
    expected = F.cross_entropy(logits, labels, reduction="none")
    assert_same_with_gradients(tilted_rows(logits, weight, model, labels, strength), expected, (logits,))


def test_a_class_with_a_logit_of_minus_infinity_takes_no_part_in_the_search():
    logits, weight, labels = (t.detach() for t in problem(5, 4, 6))
    labels = labels % 4
    model, _ = learned("within", 5, 4)
    logits[:, 4] = -math.inf
    without, _ = learned("within", 5, 4)
    expected = tilted_rows(logits[:, :4], weight[:4], without, labels, 0.7)
    actual = tilted_rows(logits, weight, model, labels, 0.7)
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)


# -- Prop. 2 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workspace", [1, base.WORKSPACE])
@pytest.mark.parametrize("kind", KINDS)
def test_prop_2_equals_its_equation(kind, workspace, monkeypatch):
    monkeypatch.setattr(base, "WORKSPACE", workspace)
    (logits, weight, _), (model, sigmas) = problem(4, 5, 7), learned(kind, 4, 5)
    actual = bounds.consistency(logits, weight, model, 0.7)
    expected = oracles.jensen_consistency(logits, weight, sigmas, 0.7)
    assert_same_with_gradients(actual, expected, (logits, weight, *model.parameters()))


@pytest.mark.parametrize("kind", KINDS)
def test_tilted_consistency_equals_the_bound_at_the_tilt_that_was_found_from_the_prediction(kind):
    (logits, weight, _), (model, sigmas) = problem(4, 5, 7), learned(kind, 4, 5)
    prediction = torch.softmax(logits.detach(), 1)
    labels, fixed = prediction.argmax(1), sigmas.detach()
    variance = tilted_variances(logits, weight, model, labels, 0.7, start=prediction).detach()
    tilts = torch.stack(
        [oracles.tilt_behind(v, weight.detach(), fixed[y], y) for v, y in zip(variance, labels, strict=True)]
    )
    expected = oracles.tilted_bound(logits, prediction, labels, tilts, weight, sigmas, 0.7)
    actual = bounds.consistency(logits, weight, model, 0.7, "tilted")
    assert_same_with_gradients(actual, expected, (logits, weight, *model.parameters()), atol=1e-7, rtol=1e-7)


@given(seed=st.integers(0, 2**31), scale=scales, strength=st.floats(0.01, 5))
def test_tilted_consistency_is_never_above_the_published_one_and_never_below_monte_carlo(seed, scale, strength):
    logits, weight, _ = (t.detach() for t in problem(5, 4, 6, seed, scale))
    model = of_matrices(oracles.random_covariances(5, 4, generator=torch.Generator().manual_seed(seed)))
    jensen, tilted = (bounds.consistency(logits, weight, model, strength, bound) for bound in BOUNDS)
    slack = 1e-9 * (1 + jensen)
    assert (tilted <= jensen + slack).all()
    prediction = torch.softmax(logits, 1)
    noise = model.sample(prediction.argmax(1), 4000, generator=torch.Generator().manual_seed(seed))
    drawn = torch.log_softmax(logits.unsqueeze(1) + strength**0.5 * noise @ weight.t(), 2)
    losses = -(prediction.unsqueeze(1) * drawn).sum(2)
    assert (tilted >= losses.mean(1) - 4.5 * losses.std(1) / 4000**0.5 - slack).all()


@pytest.mark.parametrize("bound", BOUNDS)
def test_consistency_without_strength_is_the_entropy_and_moves_no_weight(bound):
    logits, weight, _ = problem(4, 5, 6)
    model, _ = learned("full", 4, 5)
    losses = bounds.consistency(logits, weight, model, 0.0, bound)
    entropy = torch.distributions.Categorical(logits=logits.detach()).entropy()
    torch.testing.assert_close(losses, entropy)
    gradients = torch.autograd.grad(losses.sum(), (logits, weight))
    assert max(float(g.abs().max()) for g in gradients) < 1e-12


# -- second derivatives ----------------------------------------------------------------------------------------------


def second_derivative(value, leaf):
    """The gradient of the squared gradient."""
    (first,) = torch.autograd.grad(value.sum(), leaf, create_graph=True)
    return torch.autograd.grad(first.square().sum(), leaf)[0]


@pytest.mark.parametrize("kind", KINDS)
def test_second_derivatives_of_prop_1_and_2_are_right_or_refused(kind):
    model, _ = learned(kind, 4, 3)
    logits, weight, labels = problem(4, 3, 5)

    def agrees(function):
        try:
            return torch.autograd.gradgradcheck(function, (logits, weight))
        except RuntimeError as error:
            return "no second derivative" in str(error)

    assert agrees(lambda z, w: jensen_rows(z, w, model, labels, 0.7))
    assert torch.autograd.gradgradcheck(lambda w: bounds.consistency(logits.detach(), w, model, 0.7), (weight,))


@pytest.mark.parametrize("kind", KINDS)
def test_second_derivatives_of_the_tilted_bound_are_those_at_a_constant_tilt(kind):
    model, _ = learned(kind, 4, 3)
    logits, weight, labels = problem(4, 3, 24)
    variance = tilted_variances(logits, weight, model, labels, 0.7).detach()
    sigmas = torch.stack([model.covariance(c).detach() for c in range(4)])
    tilts = [oracles.tilt_behind(v, weight.detach(), sigmas[y], y) for v, y in zip(variance, labels, strict=True)]
    expected = oracles.tilted_bound(
        logits, F.one_hot(labels, 4).double(), labels, torch.stack(tilts), weight, sigmas, 0.7
    )
    actual = tilted_rows(logits, weight, model, labels, 0.7)
    torch.testing.assert_close(
        second_derivative(actual, weight), second_derivative(expected, weight), rtol=1e-5, atol=1e-5
    )
