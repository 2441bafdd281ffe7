"""State of the covariance models: merge, reset, state_dict, copies, devices and dtypes."""

from __future__ import annotations

import copy
import itertools
import pickle

import pytest
import torch
from covariance_cases import (
    ALL,
    EXACT,
    ONLINE,
    A,
    C,
    assert_matrices_close,
    assert_same_state,
    expected_matrices,
    fed,
    make,
    matrices,
    snapshot,
    stream,
)
from hypothesis import given
from hypothesis import strategies as st

from isda.covariance import FullCovariance, IdentityCovariance, ScaledCovariance
from oracles import batch_covariance, batch_mean


def parts_of(features, targets):
    """Three shards with different classes: the first has no class 0, the second only class 0, the third all."""
    first = (targets != 0).nonzero().flatten()[::2]
    second = (targets == 0).nonzero().flatten()[::2]
    rest = torch.tensor(sorted(set(range(len(targets))) - set(first.tolist()) - set(second.tolist())))
    return [(features[i], targets[i]) for i in (first, second, rest)]


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-4)])
def test_merge_equals_concatenation_in_any_order(name, order, dtype, tolerance):
    features, targets = stream(mean=100.0, dtype=dtype)
    merged = make(name, dtype)
    for k in order:
        shard = make(name, dtype)
        shard.update(*parts_of(features, targets)[k])
        merged.merge(shard)
    assert_matrices_close(merged, expected_matrices(name, features, targets), tolerance)
    assert merged.count.tolist() == torch.bincount(targets, minlength=C).tolist()
    if name != "shared":
        mean = batch_mean(features, targets, C)
        torch.testing.assert_close(merged.mean.double(), mean, rtol=tolerance, atol=tolerance)


@given(seed=st.integers(0, 2**31), cut=st.integers(1, 39))
def test_merge_and_update_can_alternate(seed, cut):
    features, targets = stream(60, seed=seed)
    for name in EXACT:
        model, other = make(name), make(name)
        model.update(features[:cut], targets[:cut])
        other.update(features[cut:40], targets[cut:40])
        model.merge(other)
        model.update(features[40:], targets[40:])
        assert_matrices_close(model, expected_matrices(name, features, targets), 1e-10)


def test_merge_leaves_the_other_model_alone_and_merging_an_empty_one_changes_nothing():
    for name in ALL:
        model, other = fed(name), make(name)
        if name == "learned":
            other.load_state_dict({**other.state_dict(), "factor": model.factor})
        before, theirs = snapshot(model), snapshot(other)
        model.merge(other)
        assert_same_state(model, before)
        assert_same_state(other, theirs)


@pytest.mark.parametrize("name", ALL)
def test_merging_adds_the_counts(name):
    model, other = fed(name), fed(name)
    if name == "learned":
        other.load_state_dict({**other.state_dict(), "factor": model.factor})
    before = model.count.clone()
    model.merge(other)
    assert model.count.tolist() == (before + other.count).tolist()
    assert int(before.sum()) > 0


def test_merged_low_rank_has_exact_variances_and_the_error_bound():
    features, targets = stream(120)
    exact, count = batch_covariance(features, targets, C), torch.bincount(targets, minlength=C)
    model = make("low_rank", rank=2)
    for part in torch.arange(120).split(40):
        shard = make("low_rank", rank=2)
        shard.update(features[part], targets[part])
        model.merge(shard)
    for c in range(C):
        torch.testing.assert_close(model.covariance(c).diagonal(), exact[c].diagonal(), rtol=0, atol=1e-12)
        errors = torch.linalg.eigvalsh(exact[c] * count[c] - model.sketch[c].T @ model.sketch[c])
        energy = float(exact[c].trace() * count[c])
        assert float(errors.min()) >= -1e-10 * energy
        assert float(errors.max()) <= energy / 3 + 1e-10 * energy


def test_merged_low_rank_is_exact_while_nothing_had_to_be_dropped():
    features, targets = stream()
    features = features + torch.linspace(0, 9, 40, dtype=torch.float64).unsqueeze(1)  # shards of different means
    model = make("low_rank", rank=A)
    for part in torch.arange(40).split(13):
        shard = make("low_rank", rank=A)
        shard.update(features[part], targets[part])
        model.merge(shard)
    assert_matrices_close(model, batch_covariance(features, targets, C), 1e-10)


def test_merge_of_decayed_statistics_adds_their_effective_weights():
    features, targets = stream(40)
    targets = torch.zeros_like(targets)
    left, right = make("full", decay=0.5), make("full", decay=0.5)
    for part in torch.arange(20).split(5):
        left.update(features[part], targets[part])
        right.update(features[20:][part], targets[20:][part])
    weights = torch.tensor([0.5**3] * 5 + [0.5**2] * 5 + [0.5] * 5 + [1.0] * 5, dtype=torch.float64).repeat(2)
    left.merge(right)
    mean = (weights.unsqueeze(1) * features).sum(0) / weights.sum()
    expected = sum(w * torch.outer(x - mean, x - mean) for w, x in zip(weights, features, strict=True)) / weights.sum()
    torch.testing.assert_close(left.covariance(0), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ALL)
def test_reset_forgets_everything(name):
    fresh, model = make(name), fed(name)
    model.reset()
    if name == "learned":
        fresh.reset()
    assert_same_state(model, snapshot(fresh))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("settings", [{}, {"decay": 0.9}])
def test_state_dict_round_trip_is_exact(name, settings, tmp_path):
    if settings and name not in ONLINE:
        settings = {}
    model = fed(name, **settings)
    torch.save(model.state_dict(), tmp_path / "state.pt")
    twin = make(name, **settings)
    twin.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert_same_state(twin, snapshot(model))
    features, targets = stream(seed=9)
    model.update(features, targets)
    twin.update(features, targets)
    assert_same_state(twin, snapshot(model))


@pytest.mark.parametrize("bad", ["NaN", "infinite", "negative"])
@pytest.mark.parametrize("name", ALL)
def test_a_state_with_impossible_statistics_is_refused_before_anything_changes(name, bad):
    """NaN and infinity in any entry; below 0 where an entry is a count or a sum of squares."""
    settings = {"decay": 0.9} if name in ONLINE else {}
    source = fed(name, **settings)
    for entry, value in source.state_dict().items():
        if bad == "negative":
            if entry not in ("count", "effective", "scatter", "fill"):
                continue
            spoilt = -value - 1
        elif value.is_floating_point():
            spoilt = value.clone()
            spoilt.view(-1)[-1] = float("nan" if bad == "NaN" else "-inf")
        else:
            continue
        target = make(name, **settings)
        before = copy.deepcopy(target.state_dict())
        with pytest.raises(ValueError, match=f"{entry} in the state must be .*; statistics were not changed"):
            target.load_state_dict(source.state_dict() | {entry: spoilt})
        assert all(torch.equal(kept, before[key]) for key, kept in target.state_dict().items())


def test_a_wrapped_model_looks_at_the_statistics_of_its_base():
    model = ScaledCovariance(FullCovariance(C, A))
    state = {key: value.clone() for key, value in model.state_dict().items()}
    state["log_scale"].fill_(1.0)
    state["base.origin"].fill_(float("nan"))
    with pytest.raises(ValueError, match=r"base\.origin in the state must be finite"):
        model.load_state_dict(state)
    assert not model.log_scale.any()


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("make_copy", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_are_equal_and_independent(name, make_copy):
    model = fed(name)
    twin, before = make_copy(model), snapshot(model)
    assert type(twin) is type(model)
    assert_same_state(twin, before)
    twin.update(*stream(seed=9))
    assert_same_state(model, before)
    model.update(*stream(seed=9))
    assert_same_state(twin, snapshot(model))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    "convert",
    [
        lambda m: m.half(),
        lambda m: m.bfloat16(),
        lambda m: m.to(torch.float16),
        lambda m: torch.nn.Sequential(m).to(torch.bfloat16)[0],
    ],
)
def test_half_precision_leaves_the_statistics_as_they_are(name, convert):
    model = fed(name, torch.float32)
    before = snapshot(model)
    model = convert(model)
    assert model.dtype == torch.float32
    assert_same_state(model, before)


@pytest.mark.parametrize("name", ALL)
def test_double_and_float_convert_the_statistics_but_never_the_counts(name):
    model = fed(name, torch.float32)
    expected = matrices(model)
    model.double()
    assert model.dtype == torch.float64
    assert model.count.dtype == torch.int64
    torch.testing.assert_close(matrices(model), expected, rtol=1e-6, atol=1e-6)
    assert model.float().dtype == torch.float32


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("asked", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_dtype_asked_for_is_raised_to_float32(name, asked):
    model = make(name, asked)
    assert model.dtype == (torch.float64 if asked == torch.float64 else torch.float32)
    floating = [t for t in model.state_dict().values() if t.is_floating_point()]
    assert all(t.dtype == model.dtype for t in floating)


def test_repr_shows_the_sizes():
    assert repr(FullCovariance(3, 2)) == "FullCovariance(num_classes=3, feature_dim=2)"


@pytest.mark.parametrize("name", ALL)
def test_merge_with_another_kind_or_shape_raises_and_changes_nothing(name):
    model = fed(name)
    others = [
        type(model)(C + 1, A),
        type(model)(C, A + 1),
        FullCovariance(C, A) if name == "identity" else IdentityCovariance(C, A),
    ]
    if name == "low_rank":
        others.append(type(model)(C, A, rank=7))
    if name in ONLINE:
        others.append(fed(name, decay=0.5))
    before = snapshot(model)
    for other in others:
        with pytest.raises(ValueError, match=r"^other must"):
            model.merge(other)
        assert_same_state(model, before)


def test_train_without_a_word_means_training():
    model = FullCovariance(C, A).eval()
    assert not model.training
    assert model.train() is model
    assert model.training
