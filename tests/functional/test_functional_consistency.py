"""The consistency bound for unlabelled samples, as published and tilted."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_functional_bounds import A, C, Matrices, N, assert_same_with_gradients, problem, scales

from isda.functional import bounds as consistency
from isda.functional import grouping, jensen_consistency, monte_carlo, tilted_consistency
from isda.functional.tables import quadratic_tables
from isda.functional.tilt import find_tilt
from oracles import jensen_consistency as oracle_jensen
from oracles import tilted_bound as oracle_tilted


def predictions(logits):
    p = torch.softmax(logits.detach(), 1)
    return p, p.argmax(1)


def test_jensen_consistency_and_gradients_equal_the_oracle():
    logits, _, weight, covariances = problem()
    actual = jensen_consistency(logits, weight, Matrices(covariances, "gram"), 0.8)
    assert_same_with_gradients(actual, oracle_jensen(logits, weight, covariances, 0.8), (logits, weight))


def test_gradient_flows_into_covariances_that_ask_for_it():
    logits, _, weight, _ = problem()
    factor = torch.randn(C, A, 2, dtype=torch.float64).requires_grad_()
    actual = jensen_consistency(logits, weight, Matrices(factor @ factor.mT, "gram"), 0.8)
    assert_same_with_gradients(actual, oracle_jensen(logits, weight, factor @ factor.mT, 0.8), (logits, weight, factor))


@pytest.mark.parametrize("route", ["gram", "product"])
@pytest.mark.parametrize("steps", [0, 3])
def test_tilted_consistency_and_gradients_equal_the_oracle_at_the_tilt_it_found(route, steps):
    logits, _, weight, covariances = problem()
    model, strength = Matrices(covariances, route), 0.8
    p, classes = predictions(logits)
    tilts = find_tilt(logits.detach(), quadratic_tables(weight, model, model.groups(classes)), p, strength, steps)
    actual = tilted_consistency(logits, weight, model, strength, steps)
    expected = oracle_tilted(logits, p, classes, tilts, weight, covariances, strength)
    assert_same_with_gradients(actual, expected, (logits, weight))


@pytest.mark.parametrize("rows", [1, 2, 100])
def test_chunks_made_again_in_backward_equal_the_direct_path(rows, monkeypatch):
    logits, _, weight, covariances = problem()
    model, reruns = Matrices(covariances, "gram"), []
    direct = jensen_consistency(logits, weight, model, 0.8)
    monkeypatch.setattr(consistency, "WORKSPACE_BYTES", 0)
    monkeypatch.setattr(grouping, "rows_per_chunk", lambda row_bytes: rows)
    real = model.gram
    model.gram = lambda *arguments: (reruns.append(1), real(*arguments))[1]
    chunked = jensen_consistency(logits, weight, model, 0.8)
    forwards = len(reruns)
    assert_same_with_gradients(chunked, direct, (logits, weight), tolerance=1e-12)
    assert len(reruns) == 2 * forwards  # every chunk was made again


def test_statistics_changed_before_backward_raise_where_they_are_read_again(monkeypatch):
    logits, _, weight, covariances = problem()
    monkeypatch.setattr(consistency, "WORKSPACE_BYTES", 0)
    loss = jensen_consistency(logits, weight, Matrices(covariances, "gram"), 0.8)
    covariances += 1
    with pytest.raises(RuntimeError, match="statistics were updated"):
        loss.sum().backward()


@given(
    seed=st.integers(0, 2**31),
    weight_scale=scales,
    logit_scale=scales,
    strength=st.floats(0.01, 10),
    rank=st.integers(1, A),
    steps=st.integers(0, 4),
)
def test_tilted_is_never_above_jensen_and_never_below_monte_carlo(
    seed, weight_scale, logit_scale, strength, rank, steps
):
    logits, _, weight, covariances = problem(seed, weight_scale, logit_scale, rank)
    jensen = oracle_jensen(logits, weight, covariances, strength).detach()
    tilted = tilted_consistency(logits, weight, Matrices(covariances, "gram"), strength, steps).detach()
    assert (tilted <= jensen * (1 + 1e-12) + 1e-12).all()
    p, classes = predictions(logits)
    roots = torch.stack([torch.linalg.cholesky(s + 1e-14 * torch.eye(A)) for s in covariances[classes]])
    noise = torch.randn(N, 4000, A, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    estimate = monte_carlo(logits.detach(), p, noise @ roots.mT, weight.detach(), strength)
    assert (tilted >= estimate.value - 4 * estimate.standard_error - 1e-9 * (1 + jensen)).all()


def test_without_variance_it_is_the_entropy_of_the_prediction():
    logits, _, weight, _ = problem()
    zero = Matrices(torch.zeros(C, A, A, dtype=torch.float64), "gram")
    entropy = torch.distributions.Categorical(logits=logits.detach()).entropy()
    for loss in (jensen_consistency(logits, weight, zero, 1.0), tilted_consistency(logits, weight, zero, 1.0)):
        torch.testing.assert_close(loss.detach(), entropy)
        # p is constant: the gradient is that of a cross-entropy at its own target, which is zero.
        torch.testing.assert_close(torch.autograd.grad(loss.sum(), logits)[0], torch.zeros(N, C).double())
