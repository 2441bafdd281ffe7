"""ExplicitLoss: the cross-entropy of features that are drawn, eq. (5), against a loop over the draws."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import oracles
from isda import ExplicitLoss, ISDALoss
from loss_cases import (
    assert_same_state,
    assert_same_with_gradients,
    covariance_model,
    integers,
    learned,
    normal,
    state_of,
)

C, A, N, M = 4, 5, 6, 3
SETTINGS = [{}, {"reduction": "sum"}, {"reduction": "none"}, {"label_smoothing": 0.2},
            {"class_weight": torch.tensor([0.3, 1.0, 2.5, 0.6]).double()}]  # fmt: skip


def trained(kind: str = "full", samples: int = M, **settings) -> ExplicitLoss:
    model, _ = learned(kind, C, A)
    return ExplicitLoss(C, A, **{"lambda_0": 0.8, "total_steps": 10} | settings, samples=samples, covariance=model)


def problem():
    features, weight = normal(N, A, seed=1), normal(C, A, seed=2).requires_grad_()
    return features.requires_grad_(), integers(C, N, seed=3), weight


def drawn(criterion, features, targets, weight, **settings):
    """The loss, and the draws it was made of: the same, from the same state of the generator."""
    torch.manual_seed(5)
    logits = features @ weight.t()
    loss = criterion(logits, targets, features=features.detach(), weight=weight, strength=0.7, **settings)
    labels = targets.clamp(min=0) if targets.ndim == 1 else targets.argmax(1)
    torch.manual_seed(5)
    return loss, criterion.covariance.sample(labels, criterion.samples).detach()


@pytest.mark.parametrize("kind", ["full", "diagonal", "low_rank", "within", "learned"])
@pytest.mark.parametrize("soft", [False, True])
def test_loss_and_gradients_equal_the_loop_over_draws(soft, kind):
    features, targets, weight = problem()
    if soft:
        targets = torch.softmax(normal(N, C, seed=4), 1)
    loss, directions = drawn(trained(kind), features, targets, weight)
    assert directions.shape == (N, M, A)
    expected = oracles.explicit_loss(features, targets, directions, weight, None, 0.7)
    assert_same_with_gradients(loss, expected, (features, weight))


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: next(iter(settings), "mean"))
def test_reductions_weights_and_ignored_labels_are_those_of_cross_entropy(settings):
    features, targets, weight = problem()
    targets[2] = -100
    criterion = trained(**settings)
    loss, directions = drawn(criterion, features, targets, weight)
    logits = (features.unsqueeze(1) + 0.7**0.5 * directions) @ weight.t()
    plain = {{"class_weight": "weight"}.get(k, k): v for k, v in settings.items()}
    parts = [F.cross_entropy(logits[:, m], targets, **plain) for m in range(M)]
    torch.testing.assert_close(loss, sum(parts) / M)


def test_it_learns_and_counts_as_isda_does():
    features, targets, weight = problem()
    explicit = ExplicitLoss(C, A, 0.8, 4, samples=2, covariance=covariance_model("full", C, A))
    implicit = ISDALoss(C, A, 0.8, 4, covariance=covariance_model("full", C, A))
    for _ in range(3):
        for criterion in (explicit, implicit):
            criterion(features @ weight.t(), targets, features=features, weight=weight)
    assert explicit.strength == pytest.approx(0.6)
    assert_same_state(explicit, state_of(implicit))
    before = state_of(explicit)
    loss = explicit.eval()(features @ weight.t(), targets)
    assert torch.equal(loss, F.cross_entropy(features @ weight.t(), targets))
    assert_same_state(explicit, before)


def test_many_draws_come_near_an_expectation_below_the_bound():
    features, targets, weight = problem()
    logits = features @ weight.t()
    settings = {"features": features, "weight": weight, "strength": 0.7}
    losses = torch.stack([trained(samples=500)(logits, targets, **settings).detach() for _ in range(20)])
    model, _ = learned("full", C, A)
    bound = ISDALoss(C, A, covariance=model)(logits, targets, **settings)
    assert losses.mean() < bound
    one = torch.stack([trained(samples=1)(logits, targets, **settings).detach() for _ in range(200)])
    assert abs(losses.mean() - one.mean()) < 4.5 * one.std() / 200**0.5
    assert losses.std() < 0.2 * one.std()


def test_consistency_equals_the_loop_over_draws_and_changes_nothing():
    _, _, weight = problem()
    logits = (2 * normal(N, C, seed=7)).requires_grad_()
    criterion = trained(reduction="none")
    before = state_of(criterion)
    prediction = torch.softmax(logits.detach(), 1)
    torch.manual_seed(5)
    losses = criterion.consistency(logits, weight=weight, strength=0.7)
    torch.manual_seed(5)
    directions = criterion.covariance.sample(prediction.argmax(1), M)
    expected = torch.stack(oracles.explicit_consistency(logits, prediction, directions, weight, 0.7))
    assert_same_with_gradients(losses, expected, (logits, weight))
    for reduction in ("mean", "sum"):
        criterion.reduction = reduction
        torch.manual_seed(5)
        value = criterion.consistency(logits, weight=weight, strength=0.7)
        torch.testing.assert_close(value, getattr(losses, reduction)())
    assert_same_state(criterion, before)


def test_pixels_and_bad_settings_are_refused():
    criterion = trained()
    with pytest.raises(ValueError, match="explicit augmentation is for logits"):
        criterion(torch.zeros(1, C, 2, 2).double(), torch.zeros(1, 2, 2).long(),
                  features=torch.zeros(1, A, 2, 2).double(), weight=torch.zeros(C, A).double())  # fmt: skip
    with pytest.raises(ValueError, match="samples must be an integer of at least 1, got 0"):
        ExplicitLoss(C, A, samples=0)
