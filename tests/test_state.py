"""Copies, pickles and states: training goes on where it was, and what does not fit is refused."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch

from isda import ISDABCELoss, ISDALoss
from loss_cases import (
    KINDS,
    assert_same_state,
    batch,
    covariance_model,
    criterion_of,
    integers,
    learned,
    network,
    normal,
    state_of,
)


def a_training(kind: str = "full", **settings):
    """A model, its criterion and optimizer."""
    model = network()
    if kind in ("low_rank", "learned"):
        settings["rank"] = 2
    criterion = ISDALoss.attach(model, 0.8, 6, covariance=kind, **settings)
    optimizer = torch.optim.SGD([*model.parameters(), *criterion.parameters()], lr=0.1, momentum=0.9)
    return model, criterion, optimizer


def steps(training, seeds) -> list[torch.Tensor]:
    """The losses of some steps."""
    model, criterion, optimizer = training
    losses = []
    for seed in seeds:
        x, y = batch(12, seed=seed)
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def pickled(training):
    return pickle.loads(pickle.dumps(training))


def saved(training):
    file = io.BytesIO()
    torch.save(training, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled, saved])
def test_a_copied_training_goes_on_with_its_strength_growing(copied):
    training = a_training()
    steps(training, range(3))
    other = copied(training)
    assert other[1].strength == pytest.approx(0.4)
    expected = steps(training, range(3, 8))
    before = state_of(training[1])
    torch.testing.assert_close(steps(other, range(3, 8)), expected)
    assert_same_state(other[0], state_of(training[0]))
    assert_same_state(training[1], before)
    assert other[1].strength == pytest.approx(0.8)
    assert int(other[1].step) == 8
    assert other[1].covariance.count.sum() == 8 * 12
    other[1].detach()
    steps(training, [8])


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_goes_on_where_it_was_saved(kind):
    training, other = a_training(kind), a_training(kind)
    steps(training, range(3))
    for part, target in zip(training, other, strict=True):
        target.load_state_dict(copy.deepcopy(part.state_dict()))
    torch.testing.assert_close(steps(other, range(3, 6)), steps(training, range(3, 6)))
    assert_same_state(other[1], state_of(training[1]))
    names = set(training[1].state_dict())
    assert {"step", "covariance.count", "covariance.mean"} <= names
    assert not any(name.startswith("recorder") for name in names)


def test_states_of_other_sizes_and_kinds_are_refused():
    state = criterion_of("full").state_dict()
    for other in (
        criterion_of("full", 3),
        criterion_of("full", 4, 6),
        criterion_of("identity"),
        criterion_of("low_rank"),
    ):
        with pytest.raises(RuntimeError, match="Error"):
            other.load_state_dict(state)


@pytest.mark.parametrize("name", ["schedule.step", "covariance.offset"])
def test_states_of_before_0_5_are_refused_by_a_sentence(name):
    criterion = criterion_of()
    for model, prefix in ((criterion, ""), (torch.nn.ModuleDict({"loss": criterion}), "loss.")):
        before = state_of(model)
        old = {**model.state_dict(), f"{prefix}{name}": torch.zeros(())}
        with pytest.raises(ValueError, match=r"saved by an isda before 0\.5.*train again"):
            model.load_state_dict(old, strict=False)
        assert_same_state(model, before)


@pytest.mark.parametrize("convert", [lambda m: m.half(), lambda m: m.bfloat16(), lambda m: m.to(torch.float16)])
@pytest.mark.parametrize("kind", ["full", "diagonal", "low_rank", "within"])
def test_half_precision_leaves_statistics_alone_and_double_converts_them(convert, kind):
    model = covariance_model(kind, 4, 5, dtype=torch.float32)
    model.update(normal(40, 5, seed=1, dtype=torch.float32), integers(4, 40, seed=2))
    before = state_of(model)
    assert_same_state(convert(model), before)
    double = model.double()
    assert {b.dtype for b in double.buffers()} == {torch.float64, torch.int64}
    features, labels = normal(8, 5, seed=3), integers(4, 8, seed=4)
    double.update(features, labels)
    assert double.count.sum() == 48


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_statistics_have_at_least_float32(dtype):
    criterion = ISDALoss(4, 5, 0.5, 10, dtype=dtype)
    assert criterion.covariance.mean.dtype == criterion.covariance.scatter.dtype == torch.float32
    assert ISDALoss(4, 5, dtype=torch.float64).covariance.scatter.dtype == torch.float64
    model = network(dtype=torch.float64).to(dtype)
    criterion = ISDALoss.attach(model, 0.5, 10)
    assert criterion.covariance.mean.dtype == torch.float32


def test_a_criterion_is_a_part_of_a_model_as_any_module():
    model, criterion, _ = a_training()
    whole = torch.nn.ModuleDict({"model": model, "loss": criterion})
    steps((model, criterion, torch.optim.SGD(model.parameters(), lr=0.1)), range(2))
    other = torch.nn.ModuleDict({"model": network(), "loss": criterion_of("full")})
    other.load_state_dict(whole.state_dict())
    assert_same_state(other["loss"], state_of(criterion))
    assert dict(criterion.named_parameters()) == {}
    assert [name for name, _ in a_training("learned")[1].named_parameters()] == ["covariance.factor"]


def test_class_weights_are_saved_and_move_with_the_criterion():
    weights = torch.tensor([0.3, 1.0, 2.5, 0.6])
    criterion = ISDALoss(4, 5, class_weight=weights)
    assert torch.equal(criterion.state_dict()["class_weight"], weights)
    assert criterion.double().class_weight.dtype == torch.float64
    binary = ISDABCELoss(4, 5, pos_weight=weights, class_weight=weights)
    assert {"pos_weight", "class_weight"} <= set(binary.state_dict())
    assert "meta" in str(ISDALoss(4, 5, class_weight=weights, device="meta").class_weight.device)


def test_memory_is_a_setting_of_the_criterion():
    model = network()
    criterion = ISDALoss.attach(model, 0.8, 6, memory=5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for seed in range(5):
        count = criterion.covariance.count.clone()
        steps((model, criterion, optimizer), [seed])
        new = torch.bincount(batch(12, seed=seed)[1], minlength=4)
        assert torch.equal(criterion.covariance.count, count.clamp(max=5) + new)


def test_a_copied_covariance_learns_by_itself():
    model, _ = learned("full", 4, 5)
    other, before = copy.deepcopy(model), state_of(model)
    other.update(normal(8, 5, seed=3), integers(4, 8, seed=4))
    assert_same_state(model, before)
    assert other.count.sum() == model.count.sum() + 8
