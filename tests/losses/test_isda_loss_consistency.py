"""The consistency bound for unlabelled samples, Prop. 2: as published and tilted."""

import math

import pytest
import torch
from loss_oracles import (
    COVARIANCES,
    assert_same_state,
    class_covariances,
    library_tilt,
    log_sum_exp,
    normal,
    one_hot,
    rows_of,
    state_of,
    variance_row,
)
from torch import nn

from isda import ISDALoss

CLASSES, DIM, ROWS, STRENGTH = 4, 5, 6, 0.8
BOUNDS = ("jensen", "tilted")


def learned_from(kind, bound="jensen", **settings):
    """A criterion with statistics, and what it has seen."""
    criterion = ISDALoss(
        CLASSES, DIM, 1.0, covariance=kind, bound=bound, dtype=torch.float64, schedule="constant", **settings
    )
    features, labels = 1.2 * normal(15, DIM, seed=1) + 2, torch.arange(15) % CLASSES
    criterion.covariance.update(features, labels)
    if kind == "learned":
        with torch.no_grad():
            criterion.covariance.factor.copy_(0.6 * normal(CLASSES, DIM, DIM, seed=2))
    return criterion, features, labels


def unlabelled(*size):
    logits = 1.5 * normal(size[0] if size else ROWS, CLASSES, *size[1:], seed=3)
    return logits.requires_grad_(), (0.8 * normal(CLASSES, DIM, seed=4)).requires_grad_()


def oracle_rows(criterion, kind, features, labels, logits, weight, bound):
    """sum_k p_k [F(e_k) - z_k] as published, F(a) - p.z tilted; p is a constant, Sigma that of its largest entry."""
    inputs = [tensor.detach().clone().requires_grad_() for tensor in (logits, weight, *criterion.parameters())]
    sigmas = class_covariances(kind, features, labels, CLASSES, factor=inputs[-1])
    rows, all_rows = [], rows_of(logits.detach())
    predictions = torch.softmax(all_rows, 1)
    tilts = library_tilt(criterion, all_rows, predictions.argmax(1), weight.detach(), STRENGTH, start=predictions)
    for z, tilt in zip(rows_of(inputs[0]), tilts, strict=True):
        exponentials = [math.exp(value) for value in z.tolist()]
        p = torch.tensor([value / sum(exponentials) for value in exponentials], dtype=torch.float64)
        pseudo = max(range(CLASSES), key=lambda k, p=p: p[k])

        def bound_at(tilt, z=z, pseudo=pseudo):
            return log_sum_exp(z + STRENGTH / 2 * variance_row(inputs[1], sigmas[pseudo], tilt))

        if bound == "tilted":
            rows.append(bound_at(tilt) - sum(p[k] * z[k] for k in range(CLASSES)))
        else:
            rows.append(sum(p[k] * (bound_at(one_hot(k, CLASSES)) - z[k]) for k in range(CLASSES)))
    return torch.stack(rows), inputs


def assert_same(loss, inputs, expected, expected_inputs):
    torch.testing.assert_close(loss, expected, atol=1e-10, rtol=0)
    ours = torch.autograd.grad(loss, inputs)
    theirs = torch.autograd.grad(expected, expected_inputs)
    for grad, reference in zip(ours, theirs, strict=True):
        assert reference.abs().max() > 1e-4
        torch.testing.assert_close(grad, reference, atol=1e-10, rtol=0)


@pytest.mark.parametrize("size", [(), (2, 2, 2)], ids=["rows", "pixels"])
@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("kind", COVARIANCES)
def test_loss_and_gradients_equal_the_oracle(kind, bound, size):
    criterion, features, labels = learned_from(kind, bound)
    logits, weight = unlabelled(*size)
    loss = criterion.consistency(logits, weight=weight, strength=STRENGTH)
    rows, inputs = oracle_rows(criterion, kind, features, labels, logits, weight, bound)
    assert_same(loss, [logits, weight, *criterion.parameters()], rows.mean(), inputs)


@pytest.mark.parametrize("bound", BOUNDS)
def test_a_workspace_too_small_for_the_table_changes_nothing(bound, monkeypatch):
    for module in ("bounds", "grouping", "quadratic"):
        monkeypatch.setattr(f"isda.functional.{module}.WORKSPACE_BYTES", 64)
    criterion, features, labels = learned_from("full", bound)
    logits, weight = unlabelled()
    loss = criterion.consistency(logits, weight=weight, strength=STRENGTH)
    rows, inputs = oracle_rows(criterion, "full", features, labels, logits, weight, bound)
    assert_same(loss, [logits, weight], rows.mean(), inputs)


@pytest.mark.parametrize("bound", BOUNDS)
def test_reductions(bound):
    logits, weight = unlabelled(2, 3, 2)
    values = {}
    for reduction in ("mean", "sum", "none"):
        criterion, *seen = learned_from("full", bound, reduction=reduction)
        values[reduction] = criterion.consistency(logits, weight=weight, strength=STRENGTH)
    rows, _ = oracle_rows(criterion, "full", *seen, logits, weight, bound)
    torch.testing.assert_close(values["none"], rows.view(2, 3, 2), atol=1e-10, rtol=0)
    torch.testing.assert_close(values["sum"], rows.sum(), atol=1e-10, rtol=0)
    torch.testing.assert_close(values["mean"], rows.mean(), atol=1e-10, rtol=0)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("kind", COVARIANCES)
def test_no_state_changes(kind, bound, training):
    criterion, *_ = learned_from(kind)
    criterion.train(training)
    before = state_of(criterion)
    logits, weight = unlabelled()
    criterion.consistency(logits, weight=weight, bound=bound).backward()
    assert_same_state(criterion, before)


@pytest.mark.parametrize("kind", COVARIANCES)
def test_tilted_is_never_above_jensen(kind):
    criterion, *_ = learned_from(kind, reduction="none")
    logits, weight = normal(200, CLASSES, seed=7) * 2, normal(CLASSES, DIM, seed=8)
    jensen, tilted = (criterion.consistency(logits, weight=weight, strength=STRENGTH, bound=bound) for bound in BOUNDS)
    assert (tilted <= jensen + 1e-12).all()
    assert tilted.mean() < jensen.mean() - 1e-3


@pytest.mark.parametrize("bound", BOUNDS)
def test_it_is_an_upper_bound_of_the_expected_loss(bound):
    criterion, features, labels = learned_from("full", reduction="none")
    logits, weight = (tensor.detach() for tensor in unlabelled())
    bounds = criterion.consistency(logits, weight=weight, strength=STRENGTH, bound=bound)
    for z, value in zip(logits, bounds, strict=True):
        p = torch.softmax(z, 0)
        rows = features[labels == p.argmax()]
        # Mixed with standard normal numbers, centred features have their own covariance.
        directions = normal(4000, len(rows), seed=9) @ (rows - rows.mean(0)) / math.sqrt(len(rows))
        shift = math.sqrt(STRENGTH) * directions @ weight.t()
        losses = [-(torch.log_softmax(z + sign * shift, 1) * p).sum(1) for sign in (1, -1)]
        pairs = (losses[0] + losses[1]) / 2
        assert value >= pairs.mean() - 4 * pairs.std() / math.sqrt(len(pairs))


@pytest.mark.parametrize("bound", BOUNDS)
def test_at_strength_zero_it_is_the_entropy_of_the_prediction(bound):
    criterion, *_ = learned_from("full", bound)
    logits, weight = unlabelled()
    p = torch.softmax(logits, 1)
    loss = criterion.consistency(logits, weight=weight, strength=0.0)
    torch.testing.assert_close(loss, -(p * p.log()).sum(1).mean(), atol=1e-12, rtol=0)
    # The prediction is a constant, so that nothing pulls at the logits without augmentation.
    assert torch.autograd.grad(loss, logits)[0].abs().max() < 1e-12


def test_the_current_strength_and_bound_are_the_default():
    criterion, *_ = learned_from("full", "tilted")
    criterion.schedule.kind, criterion.schedule.total_steps = "linear", 10
    criterion.schedule.step.fill_(4)
    logits, weight = unlabelled()
    expected = criterion.consistency(logits, weight=weight, strength=0.4, bound="tilted")
    assert torch.equal(criterion.consistency(logits, weight=weight), expected)


def test_an_attached_criterion_knows_the_weight():
    model = nn.Sequential(nn.Linear(3, DIM), nn.ReLU(), nn.Linear(DIM, CLASSES))
    criterion = ISDALoss.attach(model, 1.0, schedule="constant")
    x = normal(12, 3, seed=1, dtype=torch.float32)
    criterion(model(x), torch.arange(12) % CLASSES)
    logits = model(x)
    loss = criterion.consistency(logits)
    assert torch.equal(loss, criterion.consistency(logits, weight=model[2].weight))
    assert criterion.covariance.count.sum() == 12


@pytest.mark.parametrize("kind", ["diagonal", "low_rank", "full"])
def test_a_thousand_classes_run_tilted(kind):
    criterion = ISDALoss(1000, 16, 0.5, covariance=kind, bound="tilted", reduction="none", schedule="constant")
    features = normal(64, 16, seed=1, dtype=torch.float32)
    weight = (0.3 * normal(1000, 16, seed=2, dtype=torch.float32)).requires_grad_()
    criterion.covariance.update(features, torch.arange(64) % 4)
    logits = (3 * (features @ weight.detach().t())).requires_grad_()
    loss = criterion.consistency(logits, weight=weight)
    loss.sum().backward()
    published = criterion.consistency(logits[:4], weight=weight, bound="jensen")
    assert (loss[:4] <= published * (1 + 1e-5)).all()
    assert logits.grad.isfinite().all()
    assert weight.grad.isfinite().all()


# -- beside the supervised loss ------------------------------------------------------------------------------------


def supervised(criterion, weight):
    features = normal(8, DIM, seed=20)
    return criterion(features @ weight.t(), torch.arange(8) % CLASSES, features=features, weight=weight, strength=0.5)


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("kind", COVARIANCES)
def test_a_later_supervised_call_does_not_disturb_the_gradient(kind, bound):
    logits, weight = unlabelled()
    criterion, *_ = learned_from(kind, bound)
    alone = torch.autograd.grad(criterion.consistency(logits, weight=weight), [logits, weight])
    loss = criterion.consistency(logits, weight=weight)
    supervised(criterion, weight)
    after = torch.autograd.grad(loss, [logits, weight])
    assert all(torch.equal(*pair) for pair in zip(alone, after, strict=True))


@pytest.mark.parametrize("bound", BOUNDS)
def test_where_the_statistics_must_be_read_again_a_later_supervised_call_is_refused(bound, monkeypatch):
    for module in ("bounds", "quadratic"):
        monkeypatch.setattr(f"isda.functional.{module}.WORKSPACE_BYTES", 64)
    logits, weight = unlabelled()
    criterion, *_ = learned_from("full", bound)
    loss = criterion.consistency(logits, weight=weight)
    supervised(criterion, weight)
    with pytest.raises(RuntimeError, match="statistics were updated between a forward pass and its backward pass"):
        loss.backward()
