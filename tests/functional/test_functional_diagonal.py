"""Quadratic forms under diagonal covariances against full matrices that happen to be diagonal."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from isda.functional import grouping
from isda.functional.diagonal import diagonal_gram, diagonal_margins, diagonal_variances
from oracles import margin_variance

pytestmark = pytest.mark.any_device

C, A = 5, 4


@pytest.fixture
def case():
    weight = torch.randn(C, A, dtype=torch.float64).requires_grad_()
    return weight, torch.rand(3, A, dtype=torch.float64).requires_grad_()


def assert_same_with_gradients(actual, expected, inputs):
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)
    pull = torch.randn_like(expected)
    for mine, theirs in zip(
        torch.autograd.grad(actual, inputs, pull), torch.autograd.grad(expected, inputs, pull), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


def test_margins_equal_the_oracle(case):
    weight, variance = case
    pivots = [4, 1, 1]
    rows = []
    for s, p in zip(variance, pivots, strict=True):
        rows.append(margin_variance(weight, torch.diag(s).expand(C, A, A), [p])[0])
    assert_same_with_gradients(diagonal_margins(weight, variance, torch.tensor(pivots)), torch.stack(rows), case)


def test_variances_equal_the_oracle(case):
    weight, variance = case
    expected = torch.stack([torch.stack([w @ torch.diag(s) @ w for w in weight]) for s in variance])
    assert_same_with_gradients(diagonal_variances(weight, variance), expected, case)


@pytest.mark.parametrize("workspace", [1, 400, 2**20])
def test_gram_tables_equal_the_oracle_whatever_the_workspace(case, workspace, monkeypatch):
    monkeypatch.setattr(grouping, "WORKSPACE_BYTES", workspace)
    weight, variance = case
    tables = []
    for s in variance:
        tables.append(torch.stack([torch.stack([v @ torch.diag(s) @ w for w in weight]) for v in weight]))
    assert_same_with_gradients(diagonal_gram(weight, variance), torch.stack(tables), case)


def test_margins_pass_gradcheck_twice(case):
    pivots = torch.tensor([4, 1, 1])
    assert gradcheck(lambda w, s: diagonal_margins(w, s, pivots), case)
    assert gradgradcheck(lambda w, s: diagonal_margins(w, s, pivots), case)


def test_a_large_common_component_of_the_weights_does_not_cancel_in_float32():
    spread = torch.randn(C, A)
    weight = spread + 1000
    exact = weight.double()
    variance = torch.rand(1, A)
    expected = margin_variance(exact, torch.diag(variance[0].double()).expand(C, A, A), [2])
    actual = diagonal_margins(weight, variance, torch.tensor([2]))
    torch.testing.assert_close(actual.double(), expected, rtol=1e-4, atol=1e-5)
