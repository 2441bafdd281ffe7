"""What the bounds ask of every covariance model, against oracles built on its covariance matrices."""

from __future__ import annotations

import pytest
import torch
from covariance_cases import ALL, A, C, fed, make, matrices, stream
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

from isda import covariance
from isda.functional import grouping
from oracles import margin_variance

CLASSES = [[0, 1, 2, 3], [2, 0, 2], [1]]


def exact_matrices(model):
    """(C, A, A) the covariances, differentiable in a learned factor."""
    return torch.stack([model.covariance(c) for c in range(C)])


def assert_same_with_gradients(actual, expected, inputs, tolerance=1e-10):
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
    pull = torch.randn_like(expected)
    for mine, theirs in zip(
        torch.autograd.grad(actual, inputs, pull), torch.autograd.grad(expected, inputs, pull), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)


def weights() -> torch.Tensor:
    return torch.randn(C, A, dtype=torch.float64).requires_grad_()


@pytest.fixture(params=[1, 2**25], ids=["tiny workspace", "workspace"])
def workspace(request, monkeypatch):
    monkeypatch.setattr(grouping, "WORKSPACE_BYTES", request.param)
    monkeypatch.setattr("isda.covariance.full.WORKSPACE_BYTES", request.param)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("classes", CLASSES)
def test_margin_variance_and_gradients_equal_the_oracle(name, classes, workspace):
    model, weight = fed(name), weights()
    inputs = [weight, *model.parameters()]
    expected = margin_variance(weight, exact_matrices(model), classes)
    assert_same_with_gradients(model.margin_variance(weight, classes), expected, inputs)


@pytest.mark.parametrize("name", ALL)
def test_float32_margin_variance_is_within_1e_5_of_the_oracle(name):
    model, weight = fed(name, torch.float32), weights().detach().float().requires_grad_()
    exact = weight.detach().double().requires_grad_()
    actual = model.margin_variance(weight, range(C))
    expected = margin_variance(exact, matrices(model).detach(), list(range(C)))
    torch.testing.assert_close(actual.detach().double(), expected.detach(), rtol=1e-5, atol=1e-5)
    (mine,), (theirs,) = torch.autograd.grad(actual.sum(), weight), torch.autograd.grad(expected.sum(), exact)
    assert (mine.double() - theirs).norm() <= 1e-5 * theirs.norm()


@pytest.mark.parametrize("name", ALL)
def test_variances_equal_the_oracle(name, workspace):
    model, weight = fed(name), weights()
    index = model.matrix_index(torch.tensor([2, 0]))
    sigmas = exact_matrices(model)[[2, 0]]
    expected = torch.stack([torch.stack([w @ sigma @ w for w in weight]) for sigma in sigmas])
    assert_same_with_gradients(model.variances(weight, index), expected, [weight, *model.parameters()])


@pytest.mark.parametrize("name", ALL)
def test_gram_tables_equal_the_oracle(name, workspace):
    model, weight = fed(name), weights()
    index = model.matrix_index(torch.tensor([2, 0]))
    sigmas = exact_matrices(model)[[2, 0]]
    expected = torch.stack([torch.stack([torch.stack([v @ s @ w for w in weight]) for v in weight]) for s in sigmas])
    assert_same_with_gradients(model.gram(weight, index), expected, [weight, *model.parameters()])


@pytest.mark.parametrize("name", ALL)
def test_transform_equals_the_oracle(name, workspace):
    model, vectors = fed(name), torch.randn(5, A, dtype=torch.float64).requires_grad_()
    targets = torch.tensor([2, 0, 1, 0, 2])
    expected = torch.stack([exact_matrices(model)[t] @ v for t, v in zip(targets.tolist(), vectors, strict=True)])
    actual = model.transform(model.groups(targets))(vectors)
    assert_same_with_gradients(actual, expected, [vectors, *model.parameters()])


@pytest.mark.parametrize("name", ALL)
def test_margin_variance_passes_gradcheck_twice(name):
    model = fed(name)
    assert gradcheck(lambda w: model.margin_variance(w, [2, 0, 1]), weights())
    assert gradgradcheck(lambda w: model.margin_variance(w, [2, 0, 1]), weights())


@pytest.mark.parametrize("operation", ["margin_variance", "variances", "gram", "transform"])
def test_learned_factors_are_differentiable_twice(operation):
    model = make("learned")
    index, groups = torch.tensor([2, 0]), model.groups(torch.tensor([2, 0, 0, 1]))

    def function(vectors, factor):
        model.factor.data = factor.data  # keep the parameter, differentiate through the argument
        del model._parameters["factor"]
        model.factor = factor
        try:
            if operation == "transform":
                return model.transform(groups)(vectors)
            return getattr(model, operation)(vectors, index)
        finally:
            del model.factor
            model.factor = torch.nn.Parameter(factor.detach())

    factor = model.factor.detach().clone().requires_grad_()
    assert gradcheck(function, (weights(), factor))
    assert gradgradcheck(function, (weights(), factor))


@pytest.mark.parametrize("name", ALL)
@given(
    seed=st.integers(0, 2**31),
    common=st.sampled_from([0.0, 1.0, 1e3, 1e6]),
    spread=st.sampled_from([1e-6, 1e-3, 1.0]),
    feature_scale=st.sampled_from([1e-3, 1.0, 1e3]),
)
def test_float32_margins_are_never_negative_and_exactly_zero_at_home(name, seed, common, spread, feature_scale):
    generator = torch.Generator().manual_seed(seed)
    model = make(name, torch.float32)
    features, targets = stream(12, seed=seed, dtype=torch.float32)
    model.update(features * feature_scale, targets)
    weight = common * torch.randn(1, A, generator=generator) + spread * torch.randn(C, A, generator=generator)
    values = model.margin_variance(weight, range(C)).detach()
    assert torch.isfinite(values).all()
    assert (values >= 0).all()
    assert (values.diagonal() == 0).all()


@pytest.mark.parametrize("name", ALL)
def test_a_large_common_component_of_the_weights_does_not_cancel(name):
    model, spread = fed(name, torch.float32), torch.randn(C, A)
    weight = spread + 1000 * torch.randn(1, A)
    expected = margin_variance(weight.double(), matrices(model).detach(), list(range(C)))
    actual = model.margin_variance(weight, range(C)).detach().double()
    assert (actual - expected).norm() <= 1e-3 * expected.norm()


def test_unseen_classes_of_unseen_models_have_no_margins():
    for name in ("full", "diagonal", "low_rank", "shared"):
        assert not covariance.create(name, C, A).margin_variance(torch.randn(C, A), range(C)).any()
