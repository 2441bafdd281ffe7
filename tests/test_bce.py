"""ISDABCELoss against loops over samples and labels, and as nn.BCEWithLogitsLoss where it is one."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import oracles
from isda import ISDABCELoss
from loss_cases import (
    assert_same_state,
    assert_same_with_gradients,
    covariance_model,
    network,
    normal,
    sigmas_of,
    state_of,
)

N, K, A, LAMBDA = 7, 3, 4, 0.6
PRESENT, LABEL_WEIGHTS = torch.tensor([2.0, 0.5, 3.0]).double(), torch.tensor([0.3, 1.0, 1.7]).double()


def criterion_of(kind: str = "full", **settings) -> ISDABCELoss:
    model = covariance_model(kind, 1, A)
    return ISDABCELoss(K, A, **{"lambda_0": LAMBDA, "total_steps": 10} | settings, covariance=model)


def problem(*grid: int, seed: int = 1):
    """Features, targets of which some are between 0 and 1, logits and weight."""
    features, weight = normal(N, A, *grid, seed=seed) + 1, normal(K, A, seed=seed + 1).requires_grad_()
    targets = (normal(N, K, *grid, seed=seed + 2) > 0.4).double()
    targets[0] = torch.tensor([0.2, 0.9, 0.5]).view(K, *[1] * len(grid))
    return features, targets, (2 * normal(N, K, *grid, seed=seed + 3)).requires_grad_(), weight


def sigma_of(criterion, kind, *features):
    rows = torch.cat([oracles.rows_of(part) for part in features])
    return sigmas_of(criterion.covariance, kind, rows, torch.zeros(len(rows)).long())[0]


def call(criterion, logits, targets, features, weight, strength=LAMBDA):
    return criterion(logits, targets, features=features, weight=weight, strength=strength)


@pytest.mark.parametrize("kind", ["full", "diagonal", "low_rank", "shared", "within", "identity", "learned"])
def test_losses_and_gradients_equal_the_loop(kind):
    first, (features, targets, logits, weight) = problem(), problem(seed=11)
    criterion = criterion_of(kind, reduction="none")
    call(criterion, first[2], first[1], first[0], first[3])
    loss = call(criterion, logits, targets, features, weight)
    sigma = sigma_of(criterion, kind, first[0], features)
    expected = oracles.binary_bound(logits, targets, weight, sigma, LAMBDA)
    assert_same_with_gradients(loss, expected, (logits, weight, *criterion.parameters()))
    for reduction in ("mean", "sum"):
        criterion.reduction = reduction
        value = call(criterion, logits, targets, features[:0], weight)
        torch.testing.assert_close(value, getattr(expected, reduction)())


def test_weights_of_labels_and_of_those_present():
    features, targets, logits, weight = problem()
    criterion = criterion_of(reduction="none", pos_weight=PRESENT, class_weight=LABEL_WEIGHTS)
    loss = call(criterion, logits, targets, features, weight)
    sigma, nothing = sigma_of(criterion, "full", features), torch.zeros_like(targets)
    absent = oracles.binary_bound(logits, nothing, weight, sigma, LAMBDA)
    present = oracles.binary_bound(logits, 1 - nothing, weight, sigma, LAMBDA)
    expected = LABEL_WEIGHTS * (PRESENT * targets * present + (1 - targets) * absent)
    assert_same_with_gradients(loss, expected, (logits, weight))


def test_it_is_an_upper_bound_of_the_expected_loss():
    features, targets, logits, weight = problem()
    criterion = criterion_of(reduction="none")
    loss = call(criterion, logits, targets, features, weight)
    draws = criterion.covariance.sample(torch.zeros(N).long(), 4000)
    moved = logits.unsqueeze(1) + LAMBDA**0.5 * draws @ weight.t()
    losses = F.binary_cross_entropy_with_logits(moved, targets.unsqueeze(1).expand_as(moved), reduction="none")
    assert (loss > losses.mean(1) - 4.5 * losses.std(1) / 4000**0.5).all()
    assert (loss > F.binary_cross_entropy_with_logits(logits, targets, reduction="none")).all()


@pytest.mark.parametrize("missing", [-1.0, math.nan])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_missing_labels_do_not_count(missing, reduction):
    features, targets, logits, weight = problem()
    known = normal(N, K, seed=6) > 0
    criterion = criterion_of(ignore_value=missing, reduction=reduction)
    loss = call(criterion, logits, torch.where(known, targets, missing), features, weight)
    losses = oracles.binary_bound(logits, targets, weight, sigma_of(criterion, "full", features), LAMBDA)
    expected = {"mean": losses[known].mean(), "sum": losses[known].sum(), "none": losses * known}[reduction]
    assert_same_with_gradients(loss, expected, (logits, weight))
    plain = criterion.eval()(logits, torch.where(known, targets, missing))
    losses = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    expected = {"mean": losses[known].mean(), "sum": losses[known].sum(), "none": losses * known}[reduction]
    torch.testing.assert_close(plain, expected)
    nothing = call(criterion.train(), logits, torch.full_like(targets, missing), features, weight)
    torch.testing.assert_close(nothing, torch.zeros_like(nothing))


@pytest.mark.parametrize("grid", [(2, 3), (5,)])
def test_pixels_are_rows_whatever_the_resolution_of_the_features(grid):
    features, targets, logits, weight = problem(*grid)
    settings = {"reduction": "none", "pos_weight": PRESENT, "class_weight": LABEL_WEIGHTS}
    criterion, by_rows = criterion_of(**settings), criterion_of(**settings)
    loss = call(criterion, logits, targets, features, weight)
    rows = [tensor.movedim(1, -1).flatten(0, -2) for tensor in (logits, targets, features)]
    expected = call(by_rows, *rows, weight)
    torch.testing.assert_close(loss.movedim(1, -1).flatten(0, -2), expected)
    assert criterion.covariance.count.item() == N * math.prod(grid)
    coarse = call(criterion_of(**settings), logits, targets, features[..., :1], weight)
    assert coarse.shape == loss.shape


@pytest.mark.parametrize("settings", [{}, {"reduction": "sum"}, {"pos_weight": PRESENT, "class_weight": LABEL_WEIGHTS}])
@pytest.mark.parametrize("why", ["eval", "no_grad", "lambda_0"])
def test_it_is_plain_to_the_bit_and_changes_nothing(why, settings):
    features, targets, logits, _ = problem()
    criterion = criterion_of(lambda_0=0.0 if why == "lambda_0" else 0.5, **settings)
    criterion.covariance.update(features, torch.zeros(N).long())
    criterion.train(why != "eval")
    before = state_of(criterion)
    plain = {{"class_weight": "weight"}.get(k, k): v for k, v in settings.items()}
    with torch.set_grad_enabled(why != "no_grad"):
        loss = criterion(logits, targets)
        expected = F.binary_cross_entropy_with_logits(logits, targets, **plain)
    assert torch.equal(loss, expected)
    if loss.requires_grad:
        assert torch.equal(*(torch.autograd.grad(value, logits)[0] for value in (loss, expected)))
    assert_same_state(criterion, before)
    if why == "eval":
        hard = targets > 0.5
        expected = F.binary_cross_entropy_with_logits(logits, hard.double(), **plain)
        assert torch.equal(criterion(logits, hard.long()), expected)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_consistency_is_the_loss_of_the_own_prediction_and_changes_nothing(reduction):
    features, _, logits, weight = problem()
    criterion = criterion_of(reduction=reduction, pos_weight=PRESENT)
    criterion.covariance.update(features, torch.zeros(N).long())
    before = state_of(criterion)
    loss = criterion.consistency(logits, weight=weight, strength=0.4)
    sigma = sigma_of(criterion, "full", features)
    expected = oracles.binary_bound(logits, logits.detach().sigmoid(), weight, sigma, 0.4)
    expected = expected if reduction == "none" else getattr(expected, reduction)()
    assert_same_with_gradients(loss, expected, (logits, weight))
    assert_same_state(criterion, before)


def test_an_attached_criterion_trains_with_the_schedule():
    model = network(dim=A, classes=K)
    criterion = ISDABCELoss.attach(model, 0.8, 4)
    x, y = normal(20, 3, seed=1), (normal(20, K, seed=2) > 0).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    strengths, losses = [], []
    for _ in range(6):
        strengths.append(criterion.strength)
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(F.binary_cross_entropy_with_logits(model(x), y).item())
    assert strengths == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 0.8])
    assert criterion.covariance.count.tolist() == [120]
    assert losses[-1] < losses[0]


def test_extreme_logits_have_finite_losses_and_gradients():
    features, targets, _, weight = problem()
    for scale in (1e4, -1e4):
        logits = torch.full((N, K), scale, dtype=torch.float32, requires_grad=True)
        loss = call(ISDABCELoss(K, A), logits, targets.float(), features.float(), weight.detach().float())
        (gradient,) = torch.autograd.grad(loss, logits)
        assert loss.isfinite()
        assert gradient.isfinite().all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"targets": torch.full((N, K), 2.0)}, r"targets must lie in 0..1, got 2 .21 of 21"),
        ({"targets": torch.full((N, K), math.nan)}, r"targets must lie in 0..1, got nan"),
        ({"targets": torch.zeros(N, K + 1)}, "targets must have the shape of logits, .7, 3., got"),
        ({"targets": [0.0]}, "targets must have the shape of logits"),
        ({"features": torch.full((N, A), math.nan)}, "features must be finite"),
        ({"features": torch.zeros(N, A + 1)}, "features must have a row of 4"),
        ({"weight": torch.zeros(K, A, device="meta")}, "weight must be"),
        ({"logits": torch.zeros(N, K + 1), "targets": torch.zeros(N, K + 1)}, "logits must be"),
    ],
)
def test_a_bad_call_is_refused_and_changes_nothing(change, message):
    features, targets, logits, weight = problem()
    arguments = {"features": features, "targets": targets, "logits": logits, "weight": weight} | change
    criterion = criterion_of()
    criterion.covariance.update(features, torch.zeros(N).long())
    before = state_of(criterion)
    with pytest.raises(ValueError, match=message):
        call(criterion, **arguments)
    assert_same_state(criterion, before)


def test_bad_settings_are_refused():
    for name in ("pos_weight", "class_weight"):
        with pytest.raises(ValueError, match=rf"{name} must be a floating point tensor of shape \(3,\)"):
            ISDABCELoss(K, A, **{name: torch.ones(2)})
