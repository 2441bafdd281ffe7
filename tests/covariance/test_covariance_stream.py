"""Online statistics: any split and any order of a stream give the covariance of the whole batch."""

from __future__ import annotations

import pytest
import torch
from covariance_cases import ALL, EXACT, ONLINE, A, C, assert_matrices_close, expected_matrices, make, matrices, stream
from hypothesis import given
from hypothesis import strategies as st

from isda.functional import grouping
from oracles import (
    batch_covariance,
    batch_mean,
    decayed_covariance,
    decayed_statistics,
    pooled_within,
    shrunk_covariance,
)


@st.composite
def orders(draw):
    """A stream, a permutation of it, and where it is cut into batches."""
    n = draw(st.integers(1, 60))
    cuts = draw(st.lists(st.integers(1, 20), min_size=0, max_size=8))
    sizes, left = [], n
    for cut in cuts:
        if cut < left:
            sizes.append(cut)
            left -= cut
    return draw(st.integers(0, 2**31)), [*sizes, left]


def feed(model, features, targets, seed, sizes):
    order = torch.randperm(len(features), generator=torch.Generator().manual_seed(seed))
    for part in order.split(sizes):
        model.update(features[part], targets[part])


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("mean", [0.0, 1e4])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-4)])
@given(order=orders())
def test_any_split_and_order_equals_the_batch_covariance(name, mean, dtype, tolerance, order):
    seed, sizes = order
    features, targets = stream(sum(sizes), seed=seed, mean=mean, dtype=dtype)
    model = make(name, dtype)
    feed(model, features, targets, seed, sizes)
    assert_matrices_close(model, expected_matrices(name, features, targets), tolerance)
    assert model.count.tolist() == torch.bincount(targets, minlength=C).tolist()


@pytest.mark.parametrize("name", ["full", "diagonal", "low_rank", "within", "shrunk"])
@given(order=orders())
def test_running_mean_equals_the_batch_mean(name, order):
    seed, sizes = order
    features, targets = stream(sum(sizes), seed=seed, mean=5.0)
    model = make(name)
    feed(model, features, targets, seed, sizes)
    torch.testing.assert_close(model.mean, batch_mean(features, targets, C), rtol=1e-12, atol=1e-12)


def test_shared_mean_is_that_of_all_features():
    features, targets = stream()
    model = make("shared")
    feed(model, features, targets, 1, [7, 33])
    torch.testing.assert_close(model.mean, features.mean(0).expand(C, A), rtol=0, atol=1e-12)


@pytest.mark.parametrize("mean", [0.0, 1e4])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-4)])
@given(order=orders(), rank=st.integers(1, 4))
def test_low_rank_has_exact_variances_and_the_error_bound_of_its_sketch_in_any_order(
    mean, dtype, tolerance, order, rank
):
    seed, sizes = order
    features, targets = stream(sum(sizes), seed=seed, mean=mean, dtype=dtype)
    model = make("low_rank", dtype, rank=rank)
    feed(model, features, targets, seed, sizes)
    exact, count = batch_covariance(features, targets, C), torch.bincount(targets, minlength=C)
    for c in range(C):
        trace = float(exact[c].trace())
        torch.testing.assert_close(
            model.covariance(c).diagonal().double(), exact[c].diagonal(), rtol=0, atol=tolerance * trace
        )
        left_out = exact[c] * count[c] - model.sketch[c].double().T @ model.sketch[c].double()
        errors, energy = torch.linalg.eigvalsh(left_out), trace * int(count[c])
        assert float(errors.min()) >= -tolerance * energy
        assert float(errors.max()) <= energy / (rank + 1) + tolerance * energy


def test_low_rank_is_exact_while_nothing_had_to_be_dropped():
    features, targets = stream()
    model = make("low_rank", rank=A)
    feed(model, features, targets, 0, [11, 29])
    assert_matrices_close(model, batch_covariance(features, targets, C), 1e-10)


@pytest.mark.parametrize("name", ONLINE)
def test_large_batches_are_split_without_a_trace(name, monkeypatch):
    features, targets = stream()
    settings = {"rank": A} if name == "low_rank" else {}
    whole, split = make(name, **settings), make(name, **settings)
    whole.update(features, targets)
    calls = []
    real = split._learn_rows
    monkeypatch.setattr(split, "_learn_rows", lambda *a: (calls.append(len(a[0])), real(*a)))
    monkeypatch.setattr(grouping, "WORKSPACE_BYTES", 4 * A * 8 * 7)
    split.update(features, targets)
    assert calls == [7, 7, 7, 7, 7, 5]
    assert_matrices_close(split, matrices(whole), 1e-12)


@pytest.mark.parametrize("name", EXACT)
def test_masked_rows_are_left_out(name):
    features, targets = stream()
    mask = torch.rand(40) < 0.5
    features[~mask] = torch.nan
    model = make(name)
    model.update(features, targets, mask=mask)
    assert_matrices_close(model, expected_matrices(name, features[mask], targets[mask]), 1e-12)
    assert model.count.sum() == mask.sum()


@pytest.mark.parametrize("name", ALL)
def test_a_batch_without_rows_that_count_changes_nothing(name):
    model = make(name)
    features, targets = stream()
    model.update(features, targets)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    model.update(torch.full_like(features, torch.nan), targets, mask=torch.zeros(40, dtype=torch.bool))
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


@pytest.mark.parametrize("name", ["full", "diagonal", "low_rank"])
def test_a_class_not_seen_yet_has_covariance_zero(name):
    model = make(name)
    features, targets = stream()
    model.update(features, targets)
    assert model.count[C - 1] == 0
    assert not model.covariance(C - 1).any()
    assert not model.margin_variance(torch.randn(C, A), [C - 1]).any()


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
def test_labels_of_any_integer_type_count_the_same(name, dtype):
    features, targets = stream()
    model, other = make(name), make(name)
    other.load_state_dict(model.state_dict())
    model.update(features, targets)
    other.update(features, targets.to(dtype))
    assert other.count.tolist() == model.count.tolist()
    assert torch.equal(matrices(other), matrices(model))


@pytest.mark.parametrize("name", ["full", "diagonal"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_three_billion_counts_do_not_saturate(name, dtype):
    seen, mean, rows = 3_000_000_000, 2.0, 1000
    model = make(name, dtype)
    model.count[1] = seen
    model.origin[1] = mean
    spread = torch.eye(A, dtype=torch.float64) * 1.5
    model.scatter[1] = (spread if name == "full" else spread.diagonal()) * seen
    # Features so far away that a thousand of them double the covariance of three billion.
    features = (torch.randn(rows, A) + 2000).to(dtype)
    model.update(features, torch.ones(rows, dtype=torch.long))
    assert model.count[1].item() == seen + rows
    batch = batch_covariance(features, torch.zeros(rows, dtype=torch.long), 1)[0]
    centre = features.double().mean(0)
    total = seen + rows
    apart = centre - mean
    expected = (seen * spread + rows * batch + seen * rows / total * torch.outer(apart, apart)) / total
    if name == "diagonal":
        expected = torch.diag(expected.diagonal())
    assert expected.diagonal().min() > 2 * 1.4
    tolerance = 1e-10 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(model.covariance(1).double(), expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(model.mean[1].double(), mean + apart * rows / total, rtol=tolerance, atol=0)


def test_counts_are_integers_beyond_the_range_of_float32():
    model = make("full", torch.float32)
    model.count[0] = 2**24
    model.scatter[0] = torch.eye(A) * 2**24
    for _ in range(3):
        model.update(torch.zeros(1, A), torch.tensor([0]))
    assert model.count[0].item() == 2**24 + 3


@pytest.mark.parametrize("name", EXACT)
@given(seed=st.integers(0, 2**31), decay=st.floats(0.05, 0.95))
def test_decay_weighs_features_by_the_batches_of_their_class_that_followed(name, seed, decay):
    features, targets = stream(30, seed=seed, mean=3.0)
    model = make(name, decay=decay)
    batches = []
    for part in torch.arange(30).split([4, 9, 1, 10, 6]):
        model.update(features[part], targets[part])
        batches.append((features[part], targets[part]))
    if name == "shared":
        batches = [(f, torch.zeros_like(t)) for f, t in batches]
        mean, expected = decayed_covariance(batches, 1, decay)
        mean, expected = mean.expand(C, A), expected.expand(C, A, A)
    elif name in ("within", "shrunk"):
        mean, own, weights = decayed_statistics(batches, C, decay, together=name == "within")
        expected = (pooled_within if name == "within" else shrunk_covariance)(own, weights)
    else:
        mean, expected = decayed_covariance(batches, C, decay)
        if name == "diagonal":
            expected = torch.diag_embed(expected.diagonal(dim1=1, dim2=2))
    assert_matrices_close(model, expected, 1e-10)
    torch.testing.assert_close(model.mean, mean, rtol=1e-10, atol=1e-10)
    assert model.count.sum() == 30


@pytest.mark.parametrize("rank", [2, A])
def test_decay_of_low_rank_keeps_exact_variances_and_at_full_rank_everything(rank):
    features, targets = stream(30)
    model, batches = make("low_rank", decay=0.7, rank=rank), []
    for part in torch.arange(30).split(6):
        model.update(features[part], targets[part])
        batches.append((features[part], targets[part]))
    _, expected = decayed_covariance(batches, C, 0.7)
    actual = matrices(model)
    if rank < A:
        actual, expected = actual.diagonal(dim1=1, dim2=2), expected.diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["identity", "learned"])
def test_models_that_do_not_learn_from_features_only_count_them(name):
    model = make(name)
    before = matrices(model)
    features, targets = stream()
    model.update(features, targets)
    assert torch.equal(matrices(model), before)
    assert model.count.tolist() == torch.bincount(targets, minlength=C).tolist()
    if name == "identity":
        assert torch.equal(before, torch.eye(A, dtype=torch.float64).expand(C, A, A))
    else:
        torch.testing.assert_close(before, (model.factor @ model.factor.mT).detach())


def test_groups_of_the_caller_change_nothing():
    features, targets = stream()
    for name in ONLINE:
        alone, helped = make(name), make(name)
        alone.update(features, targets)
        helped.update(features, targets, groups=grouping.group_rows(targets, C))
        assert torch.equal(matrices(alone), matrices(helped))
        mask = torch.arange(40) % 3 > 0
        masked, masked_helped = make(name), make(name)
        masked.update(features, targets, mask=mask)
        masked_helped.update(features, targets, mask=mask, groups=grouping.group_rows(targets, C))
        assert torch.equal(matrices(masked), matrices(masked_helped))


@pytest.mark.parametrize("name", ALL)
def test_every_class_uses_one_of_the_matrices_and_every_matrix_is_used(name):
    model = make(name)
    assert set(model.matrix_index(torch.arange(C)).tolist()) == set(range(model.num_matrices))
