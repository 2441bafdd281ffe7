"""A model as a stranger would write it, from one product: everything else works with it and is what it should be."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from covariance_cases import A, C, assert_matrices_close, stream

import oracles
from isda import ISDALoss
from isda._utils import distributed
from isda.covariance import CovarianceModel
from isda.functional import grouping
from isda.functional.tables import quadratic_tables
from isda.functional.tilt import find_tilt
from pretend_accelerator import on_pretend

STRENGTH = 0.6


def load_example() -> type[CovarianceModel]:
    path = Path(__file__).parents[2] / "examples" / "covariance_model.py"
    spec = importlib.util.spec_from_file_location("covariance_model", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.BandedCovariance


BandedCovariance = load_example()


class Pinned(CovarianceModel):
    """The least that a model can be: factors given once and for all, which gradients reach."""

    def __init__(self, factor: torch.Tensor) -> None:
        super().__init__(*factor.shape[:2])
        self.factor = torch.nn.Parameter(factor)

    def product(self, vectors, matrices):
        factor = self.factor[matrices]
        return (factor @ (factor.mT @ vectors.unsqueeze(2))).squeeze(2)


def banded(matrices: torch.Tensor, width: int = 2) -> torch.Tensor:
    """Dense covariances with the entries that the example keeps, entry by entry."""
    result = torch.zeros_like(matrices)
    for i in range(A):
        for j in range(A):
            if abs(i - j) <= width:
                result[:, i, j] = matrices[:, i, j] * (1 - abs(i - j) / (width + 1))
    return result


def fed(n: int = 40, **settings) -> CovarianceModel:
    model = BandedCovariance(C, A, dtype=torch.float64, **settings)
    features, targets = stream(n)
    for part in torch.arange(n).split(10):
        model.update(features[part], targets[part])
    return model


@pytest.fixture(params=["example", "pinned"])
def case(request):
    """A model that is fed or pinned."""
    return fed() if request.param == "example" else Pinned(torch.randn(C, A, 3, dtype=torch.float64))


def dense(model: CovarianceModel, features: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """(C, A, A) what its covariances are to be after this stream, differentiable where the model is."""
    if isinstance(model, Pinned):
        return model.factor @ model.factor.mT
    return banded(oracles.batch_covariance(features, targets, C))


@pytest.fixture(params=[1, 2**25])
def workspace(request, monkeypatch):
    monkeypatch.setattr(grouping, "WORKSPACE_BYTES", request.param)


def same_with_gradients(actual, expected, inputs):
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)
    inputs = [tensor for tensor in inputs if tensor.requires_grad]
    pull = torch.randn_like(expected)
    ours = torch.autograd.grad(actual, inputs, pull)
    theirs = torch.autograd.grad(expected, inputs, pull, retain_graph=True)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-9)


def test_dense_matrices_and_forms_follow_from_the_product(case, workspace):
    model, matrices = case, dense(case, *stream(40))
    assert_matrices_close(model, matrices.detach(), 1e-10)
    weight = torch.randn(C, A, dtype=torch.float64, requires_grad=True)
    inputs, classes = (weight, *model.parameters()), [2, 0, 0, 1]
    index = torch.tensor(classes)
    same_with_gradients(
        model.margin_variance(weight, index), oracles.margin_variance(weight, matrices, classes), inputs
    )
    gram = torch.stack([weight @ matrices[c] @ weight.T for c in classes])
    same_with_gradients(model.gram(weight, index), gram, inputs)
    same_with_gradients(model.variances(weight, index), gram.diagonal(dim1=1, dim2=2), inputs)


def problem():
    weight = torch.randn(C, A, dtype=torch.float64, requires_grad=True)
    features, targets = stream(7, seed=5)
    return features, targets, weight


@pytest.mark.parametrize("bound", ["jensen", "tilted"])
def test_the_loss_and_its_gradients_equal_the_oracle(case, bound):
    model = case
    features, targets, weight = problem()
    criterion = ISDALoss(C, A, STRENGTH, covariance=model, bound=bound, reduction="none", schedule="constant")
    logits = (features @ weight.detach().T).requires_grad_()
    loss = criterion(logits, targets, features=features, weight=weight)
    seen, labels = stream(40)
    matrices = dense(model, torch.cat([seen, features]), torch.cat([labels, targets]))
    if bound == "jensen":
        expected = oracles.jensen_bound(logits, targets, weight, matrices, STRENGTH)
    else:
        shares = torch.nn.functional.one_hot(targets, C).double()
        tables = quadratic_tables(weight.detach(), model, model.groups(targets))
        tilts = find_tilt(logits.detach(), tables, shares, STRENGTH, criterion.tilt_steps).detach()
        expected = oracles.tilted_bound(logits, shares, targets, tilts, weight, matrices, STRENGTH)
    same_with_gradients(loss, expected, (logits, weight, *model.parameters()))


def test_consistency_equals_the_oracle(case):
    model, matrices = case, dense(case, *stream(40))
    features, _, weight = problem()
    logits = (features @ weight.detach().T).requires_grad_()
    criterion = ISDALoss(C, A, STRENGTH, covariance=model, reduction="none", schedule="constant")
    expected = oracles.jensen_consistency(logits, weight, matrices, STRENGTH)
    actual = criterion.consistency(logits, weight=weight)
    same_with_gradients(actual, expected, (logits, weight, *model.parameters()))


def test_pixels_equal_rows(case):
    model = case
    features, targets, weight = problem()
    maps = features[:6].view(1, 2, 3, A).movedim(-1, 1)
    logits = torch.einsum("nahw,ca->nchw", maps, weight)
    criterion = ISDALoss(C, A, STRENGTH, covariance=model, schedule="constant")
    state = {name: value.clone() for name, value in model.state_dict().items()}
    pixels = criterion(logits, targets[:6].view(1, 2, 3), features=maps, weight=weight)
    model.load_state_dict(state)
    rows = criterion(features[:6] @ weight.T, targets[:6], features=features[:6], weight=weight)
    torch.testing.assert_close(pixels, rows)


def test_samples_have_the_covariance(case):
    model, matrices = case, dense(case, *stream(40))
    draws = model.sample([1], n=40_000, generator=torch.Generator().manual_seed(0))[0].detach()
    size = matrices[1].abs().max().item()
    torch.testing.assert_close(draws.T @ draws / len(draws), matrices[1].detach(), rtol=0, atol=0.05 * size)


def test_state_survives_saving_and_any_split_of_the_stream_merges_to_the_same():
    features, targets = stream(40)
    whole, first, second = fed(), *(BandedCovariance(C, A, dtype=torch.float64) for _ in range(2))
    first.update(features[:13], targets[:13])
    second.update(features[13:], targets[13:])
    first.merge(second)
    expected = torch.stack([whole.covariance(c) for c in range(C)])
    assert_matrices_close(first, expected, 1e-10)
    loaded = BandedCovariance(C, A, dtype=torch.float64)
    loaded.load_state_dict(whole.state_dict())
    assert_matrices_close(loaded, expected, 1e-14)


def test_processes_that_exchange_statistics_end_like_one(monkeypatch):
    """What _learn_from_statistics does with two processes, whose statistics are handed over here by hand."""
    features, targets = stream(40)
    halves = [(features[:25], targets[:25]), (features[25:], targets[25:])]
    expected, theirs = torch.stack([fed().covariance(c) for c in range(C)]), []
    for half in halves:
        local = BandedCovariance(C, A, dtype=torch.float64)
        local.update(*half)
        theirs.append(dict(local.named_buffers()))
    model = BandedCovariance(C, A, dtype=torch.float64)
    names = iter([name for _ in halves for name in theirs[0]])
    monkeypatch.setattr(type(model), "_world_size", lambda self: 2)
    monkeypatch.setattr(
        distributed, "broadcast_from", lambda buffer, rank, group: buffer.copy_(theirs[rank][next(names)])
    )
    model._learn_from_statistics(*halves[0])
    assert_matrices_close(model, expected, 1e-10)


def test_it_runs_on_a_device_without_waiting(accelerator):
    features, targets, weight = problem()
    expected = fed()
    criterion = ISDALoss(C, A, STRENGTH, covariance=expected, schedule="constant")
    loss = criterion(features @ weight.T, targets, features=features, weight=weight)
    with accelerator:
        model = BandedCovariance(C, A, dtype=torch.float64, device="pretend")
        there = ISDALoss(C, A, STRENGTH, covariance=model, device="pretend", schedule="constant")
        parts = [part for batch in (stream(40),) for part in zip(*(t.split(10) for t in batch), strict=True)]
        for rows, labels in (*parts, (features, targets)):
            accelerator.clear()
            x, w = on_pretend(rows), on_pretend(weight.detach())
            again = there(x @ w.T, on_pretend(labels), features=x, weight=w)
        assert accelerator.waits == []
        torch.testing.assert_close(again.cpu(), loss.detach())


def test_a_model_without_a_product_is_refused():
    class Nothing(CovarianceModel):
        pass

    with pytest.raises(TypeError, match="Nothing must define product"):
        Nothing(C, A)
