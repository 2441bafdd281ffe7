"""Quadratic forms under full covariances: values, gradients and second derivatives on every way to compute them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

from isda.functional import margin_variance, quadratic
from isda.functional.grouping import group_rows
from isda.functional.quadratic import full_gram, full_quadratic, full_transform, product_by_group, self_adjoint
from oracles import margin_variance as oracle_margin
from oracles import random_covariances

C, A = 5, 4

# How P = W Sigma is made: all at once, in chunks of two matrices, or matrix by matrix; kept for backward or not.
WAYS = {
    "kept": {},
    "kept in chunks": {"rows_per_chunk": lambda row_bytes: 2},
    "kept by a loop": {"LOOP_FROM_DIM": 1},
    "recomputed": {"WORKSPACE_BYTES": 0},
    "recomputed in chunks": {"WORKSPACE_BYTES": 0, "rows_per_chunk": lambda row_bytes: 2},
    "recomputed by a loop": {"WORKSPACE_BYTES": 0, "LOOP_FROM_DIM": 1},
}
CLASSES = {"every class in order": [0, 1, 2, 3, 4], "some, repeated": [3, 0, 3], "one": [2]}


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    for name, value in WAYS[request.param].items():
        monkeypatch.setattr(quadratic, name, value)
    return request.param


@pytest.fixture
def recomputed(monkeypatch):
    monkeypatch.setattr(quadratic, "WORKSPACE_BYTES", 0)


def weights() -> torch.Tensor:
    return torch.randn(C, A, dtype=torch.float64).requires_grad_()


def assert_same_gradient(actual, expected, weight):
    """With and without a graph of its own, for which the gradient takes another way."""
    pull = torch.randn_like(expected)
    (theirs,) = torch.autograd.grad(expected, weight, pull)
    for differentiable in (True, False):
        (ours,) = torch.autograd.grad(actual, weight, pull, retain_graph=True, create_graph=differentiable)
        assert_same(ours, theirs)


def assert_same(actual, expected, tolerance=1e-10):
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("classes", CLASSES.values(), ids=CLASSES.keys())
def test_margin_variance_and_its_gradient_equal_the_oracle(way, classes):
    weight, covariances = weights(), random_covariances(C, A)
    actual = margin_variance(weight, covariances, torch.tensor(classes))
    expected = oracle_margin(weight, covariances, classes)
    assert_same(actual, expected)
    assert_same_gradient(actual, expected, weight)


def test_one_matrix_for_all_classes_serves_every_row(way):
    weight, covariance, classes = weights(), random_covariances(1, A), [4, 1, 2]
    actual = margin_variance(weight, covariance, torch.tensor(classes))
    expected = oracle_margin(weight, covariance.expand(C, A, A), classes)
    assert_same(actual, expected)
    assert_same_gradient(actual, expected, weight)


@pytest.mark.parametrize("learned", [False, True])  # matrices that get gradients take another way
@pytest.mark.parametrize("pivots", [None, [4, 4, 0]])
def test_quadratic_multiplies_each_row_by_its_scale(way, pivots, learned):
    weight, matrices, groups = weights(), random_covariances(C, A), torch.tensor([2, 0, 2])
    matrices.requires_grad_(learned)
    scale = torch.tensor([0.5, 3.0, 0.1], dtype=torch.float64)
    chosen = None if pivots is None else torch.tensor(pivots)
    actual = full_quadratic(weight, matrices, groups, chosen, scale)
    rows = []
    for k, g in enumerate(groups.tolist()):
        vectors = weight if pivots is None else weight - weight[pivots[k]]
        rows.append(scale[k] * torch.stack([v @ matrices[g] @ v for v in vectors]))
    expected = torch.stack(rows)
    assert_same(actual, expected)
    assert_same_gradient(actual, expected, weight)


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("groups", [[0, 1, 2, 3, 4], [3, 1, 3]])
def test_gram_tables_and_their_gradient_equal_the_oracle(way, groups, learned):
    weight, matrices = weights(), random_covariances(C, A)
    matrices.requires_grad_(learned)
    scale = torch.rand(len(groups), dtype=torch.float64) + 0.5
    actual = full_gram(weight, matrices, torch.tensor(groups), scale)
    tables = []
    for s, g in zip(scale, groups, strict=True):
        tables.append(torch.stack([torch.stack([s * (v @ matrices[g] @ w) for w in weight]) for v in weight]))
    expected = torch.stack(tables)
    assert_same(actual, expected)
    assert_same_gradient(actual, expected, weight)


@pytest.mark.parametrize("labels", [[3, 0, 3, 4, 0, 0, 2], [1] * 30 + [3, 0, 4], [2, 2]])
def test_each_row_is_multiplied_by_the_matrix_of_its_group(labels):
    vectors, matrices = torch.randn(len(labels), A, dtype=torch.float64), random_covariances(C, A)
    targets = torch.tensor(labels)
    groups = group_rows(targets, C)
    expected = torch.stack([matrices[t] @ v for v, t in zip(vectors, labels, strict=True)])
    assert_same(full_transform(vectors, matrices, groups), expected)
    assert_same(product_by_group(vectors, matrices[groups.classes], groups), expected)


def test_first_and_second_derivatives_pass_gradcheck(way):
    matrices, classes = random_covariances(C, A), torch.tensor([3, 0, 3])
    scale = torch.tensor([0.5, 3.0, 0.1], dtype=torch.float64)
    for function in (
        lambda w: full_quadratic(w, matrices, classes, classes, scale),
        lambda w: full_quadratic(w, matrices, classes),
        lambda w: full_gram(w, matrices, classes, scale),
    ):
        assert gradcheck(function, weights())
        assert gradgradcheck(function, weights())


def test_derivatives_into_the_covariances_pass_gradcheck_twice():
    factor, classes = torch.randn(C, A, 2, dtype=torch.float64).requires_grad_(), torch.tensor([3, 0, 3])
    for function in (
        lambda w, d: margin_variance(w, d @ d.mT, classes),
        lambda w, d: full_quadratic(w, d @ d.mT, classes, scale=torch.tensor([2.0, 1.0, 0.5]).double()),
        lambda w, d: full_gram(w, d @ d.mT, classes),
    ):
        assert gradcheck(function, (weights(), factor))
        assert gradgradcheck(function, (weights(), factor))


def test_gradient_into_the_covariances_equals_the_oracle():
    weight, factor, classes = weights(), torch.randn(C, A, 2, dtype=torch.float64).requires_grad_(), [1, 4]
    actual = margin_variance(weight, factor @ factor.mT, torch.tensor(classes))
    expected = oracle_margin(weight, factor @ factor.mT, classes)
    pull = torch.randn_like(expected)
    for mine, theirs in zip(
        torch.autograd.grad(actual, (weight, factor), pull),
        torch.autograd.grad(expected, (weight, factor), pull),
        strict=True,
    ):
        assert_same(mine, theirs)


@pytest.mark.parametrize("form", ["margin", "gram"])
def test_statistics_changed_before_backward_raise_a_clear_error(recomputed, form):
    weight, matrices, classes = weights(), random_covariances(C, A), torch.tensor([0, 3])
    values = margin_variance(weight, matrices, classes) if form == "margin" else full_gram(weight, matrices, classes)
    matrices += 1
    with pytest.raises(RuntimeError, match=r"statistics were updated between a forward pass and its backward pass"):
        values.sum().backward()


def test_kept_products_give_the_gradient_of_the_forward_although_statistics_moved():
    weight, matrices, classes = weights(), random_covariances(C, A), [0, 3]
    values = margin_variance(weight, matrices, torch.tensor(classes))
    (expected,) = torch.autograd.grad(oracle_margin(weight, matrices, classes).sum(), weight)
    matrices += 1
    assert_same(torch.autograd.grad(values.sum(), weight)[0], expected)


def test_second_derivative_after_statistics_moved_raises():
    weight, matrices, classes = weights(), random_covariances(C, A), torch.tensor([0, 3])
    values = margin_variance(weight, matrices, classes)
    matrices += 1
    with pytest.raises(RuntimeError, match="statistics were updated"):
        torch.autograd.grad(values.sum(), weight, create_graph=True)


def test_forwards_before_their_backwards_do_not_share_scratch_memory(way):
    classes = [4, 2, 1]
    cases = [(weights(), random_covariances(C, A)) for _ in range(3)]
    values = [margin_variance(w, s, torch.tensor(classes)) for w, s in cases]
    for value, (weight, matrices) in zip(values, cases, strict=True):
        expected = torch.autograd.grad(oracle_margin(weight, matrices, classes).sum(), weight)[0]
        for _ in range(2):  # retained graphs may be walked again
            assert_same(torch.autograd.grad(value.sum(), weight, retain_graph=True)[0], expected)


def test_self_adjoint_operator_is_its_own_gradient_and_notices_changes():
    matrix = random_covariances(1, A)[0]
    vectors = torch.randn(3, A, dtype=torch.float64).requires_grad_()
    assert gradcheck(lambda v: self_adjoint(lambda rows: rows @ matrix, v, matrix), vectors)
    assert gradgradcheck(lambda v: self_adjoint(lambda rows: rows @ matrix, v, matrix), vectors)
    result = self_adjoint(lambda rows: rows @ matrix, vectors, matrix)
    matrix *= 2
    with pytest.raises(RuntimeError, match="statistics were updated"):
        result.sum().backward()


@given(seed=st.integers(0, 2**31), common=st.floats(0, 1e6), spread=st.floats(1e-6, 1.0), rank=st.integers(1, A))
def test_float32_margins_are_never_negative_and_exactly_zero_at_home(seed, common, spread, rank):
    generator = torch.Generator().manual_seed(seed)
    weight = common * torch.randn(1, A, generator=generator) + spread * torch.randn(C, A, generator=generator)
    covariances = random_covariances(C, A, rank=rank, generator=generator).float()
    for matrices in (covariances, covariances.clone().requires_grad_()):
        values = margin_variance(weight, matrices, torch.arange(C)).detach()
        assert (values >= 0).all()
        assert (values.diagonal() == 0).all()
