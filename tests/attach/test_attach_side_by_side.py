"""Classifiers that are averaged or added up: features and scaled weights side by side, in float64 with gradients."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from attach_helpers import assert_same_state, batch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from isda import ISDALoss
from isda.attach import find_classifiers
from oracles import batch_covariance, jensen_bound

CLASSES = 3


class Two(nn.Module):
    """Two classifiers that see different features; their outputs are averaged or added up."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.low, self.high = nn.Linear(4, 5), nn.Sequential(nn.Linear(4, 6), nn.Tanh())
        self.low_classifier, self.high_classifier = nn.Linear(5, CLASSES), nn.Linear(6, CLASSES)
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.low_classifier(self.low(x)), self.high_classifier(self.high(x))
        if self.how == "mean":
            return (first + second) / 2
        if self.how == "stacked":
            return torch.add(first, second, alpha=0.25)
        return first + second


SCALES = {"sum": (1.0, 1.0), "mean": (0.5, 0.5), "stacked": (1.0, 0.25)}


def heads_of(model: Two) -> tuple[nn.Linear, nn.Linear]:
    return model.low_classifier, model.high_classifier


def expected_loss(model: Two, x: Tensor, y: Tensor, strength: float) -> tuple[Tensor, list[Tensor]]:
    """The bound with [a1 | a2] and [s1 W1 | s2 W2], and the leaves that stand for both weights."""
    scales = SCALES[model.how]
    features = torch.cat([model.low(x), model.high(x)], 1).detach()
    leaves = [head.weight.detach().clone().requires_grad_() for head in heads_of(model)]
    weight = torch.cat([scale * leaf for scale, leaf in zip(scales, leaves, strict=True)], 1)
    bias = sum(scale * head.bias.detach() for scale, head in zip(scales, heads_of(model), strict=True))
    covariance = batch_covariance(features, y, CLASSES)
    return jensen_bound(features @ weight.t() + bias, y, weight, covariance, strength).mean(), leaves


@pytest.mark.parametrize("how", SCALES)
def test_loss_and_gradients_are_those_of_the_features_side_by_side(how: str) -> None:
    model, (x, y) = Two(how).double(), batch()
    x = x.double()
    criterion = ISDALoss.attach(model, lambda_0=0.7, schedule="constant")
    assert criterion.feature_dim == 11
    loss = criterion(model(x), y)
    expected, leaves = expected_loss(model, x, y, 0.7)
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-12)
    gradients = torch.autograd.grad(loss, [head.weight for head in heads_of(model)])
    for ours, theirs in zip(gradients, torch.autograd.grad(expected, leaves), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11)


def test_they_can_be_named() -> None:
    model, (x, y) = Two("sum"), batch()
    by_name = ISDALoss.attach(model, classifier=["low_classifier", "high_classifier"], schedule="constant")
    loss = by_name(model(x), y)
    assert torch.equal(ISDALoss.attach(model, classifier=heads_of(model), schedule="constant")(model(x), y), loss)
    with pytest.raises(ValueError, match="classifier must name at least one layer"):
        ISDALoss.attach(model, classifier=[], schedule="constant")


def test_one_of_them_alone_is_refused_with_the_reason() -> None:
    model, (x, y) = Two("mean"), batch()
    criterion = ISDALoss.attach(model, classifier="low_classifier", schedule="constant")
    with pytest.raises(ValueError, match=r"plus something that comes through AddmmBackward0.*not linear in what was"):
        criterion(model(x), y)
    criterion = ISDALoss.attach(model, schedule="constant")
    with pytest.raises(ValueError, match="made by 1 of the 2 classifiers that were attached; pass the one"):
        criterion(model.low_classifier(model.low(x)), y)
    assert not any(tensor.any() for tensor in criterion.state_dict().values())


def test_eval_mode_is_cross_entropy_and_logits_without_a_graph_too() -> None:
    model, (x, y) = Two("mean"), batch()
    criterion = ISDALoss.attach(model, schedule="constant")
    with torch.no_grad():
        logits = model(x)
        assert torch.equal(criterion(logits, y), nn.functional.cross_entropy(logits, y))
        assert torch.equal(criterion(model.eval()(x), y), nn.functional.cross_entropy(logits, y))
    assert not any(tensor.any() for tensor in criterion.state_dict().values())


def test_several_passes_of_one_classifier_average_their_features() -> None:
    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.fc = nn.Linear(4, 8), nn.Linear(8, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return (self.fc(self.body(x).relu()) + self.fc(self.body(-x).relu())) / 2

    model, (x, y) = Views().double(), batch()
    x = x.double()
    criterion = ISDALoss.attach(model, lambda_0=0.7, schedule="constant")
    loss = criterion(model(x), y)
    features = ((model.body(x).relu() + model.body(-x).relu()) / 2).detach()
    by_hand = ISDALoss(CLASSES, 8, 0.7, dtype=torch.float64, schedule="constant")
    wanted = by_hand(model.fc(features), y, features=features, weight=model.fc.weight)
    torch.testing.assert_close(loss, wanted, rtol=0, atol=1e-12)


def test_copies_and_detaching_know_both() -> None:
    model, (x, y) = Two("mean"), batch()
    criterion = ISDALoss.attach(model, lambda_0=1.0, schedule="constant")
    other, theirs = copy.deepcopy((model, criterion))
    assert torch.equal(theirs(other(x), y), criterion(model(x), y))
    assert_same_state(theirs, criterion)
    theirs.detach()
    assert not any(head._forward_hooks for head in heads_of(other))
    assert all(len(head._forward_hooks) == 1 for head in heads_of(model))
    first = ISDALoss.attach(model, classifier="high_classifier", schedule="constant")
    with pytest.raises(ValueError, match="another criterion was attached"):
        criterion(model(x), y)
    first.detach()


def test_nothing_outlives_the_backward_pass() -> None:
    model, (x, y) = Two("mean"), batch()
    criterion = ISDALoss.attach(model, lambda_0=1.0, schedule="constant")
    gc.disable()
    try:
        logits, payload = model(x), nn.Parameter(torch.zeros(1))  # the payload dies with the dictionary of the node
        logits.grad_fn.metadata["payload"] = payload
        graph = weakref.ref(payload)
        del payload
        criterion(logits, y).backward()
        assert graph() is not None
        del logits
        assert graph() is None
    finally:
        gc.enable()


def test_in_a_compiled_graph_they_are_refused() -> None:
    torch._dynamo.reset()
    model, (x, y) = Two("mean"), batch()
    criterion = ISDALoss.attach(torch.compile(model, backend="aot_eager"), schedule="constant")
    with pytest.raises(ValueError, match=r"one compiled call ran the classifier.*compile the model without"):
        criterion(torch.compile(model, backend="aot_eager")(x), y)


def test_a_parametrised_one_beside_a_plain_one() -> None:
    model, (x, y) = Two("sum"), batch()
    parametrizations.weight_norm(model.low_classifier)
    assert find_classifiers(model) == list(heads_of(model))
    criterion = ISDALoss.attach(model, lambda_0=0.5, schedule="constant")
    criterion(model(x), y).backward()
    assert model.low_classifier.parametrizations.weight.original0.grad.any()
