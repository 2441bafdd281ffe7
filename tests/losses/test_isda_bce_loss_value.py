"""ISDABCELoss against loops over samples and labels."""

import math

import pytest
import torch
import torch.nn.functional as F
from label_cases import BOUNDS, LABEL_WEIGHTS, LAMBDA, PRESENT, A, K, N, criterion_for, logits_of, naive, sample
from loss_oracles import assert_same_state, class_covariances, normal, rows_of, state_of


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("covariance", ["full", "diagonal", "identity", "learned", "shared"])
def test_losses_and_gradients_are_those_of_the_loops(covariance, bound):
    criterion = criterion_for(
        covariance=covariance, bound=bound, reduction="none", pos_weight=PRESENT, class_weight=LABEL_WEIGHTS
    )
    settings = {"uncertainty_weight": 0.0} if covariance == "learned" else {}
    if settings:
        criterion.covariance.uncertainty_weight = 0.0
        with torch.no_grad():
            criterion.covariance.factor.copy_(0.5 * normal(1, A, A, seed=9))
    seen = []
    for seed in (1, 11):
        features, weight, targets = sample(seed)
        targets[0] = torch.tensor([0.2, 0.9, 0.5])
        seen.append(features)
        weight.requires_grad_()
        logits = logits_of(features, weight).detach().requires_grad_()
        loss = criterion(logits, targets, features=features, weight=weight)
    factor = criterion.covariance.factor.detach() if settings else None
    kind = "full" if covariance == "shared" else covariance
    (sigma,) = class_covariances(kind, torch.cat(seen), [0] * 2 * N, 1, factor)
    expected = naive(bound, logits, targets, weight, sigma, LAMBDA, PRESENT.double(), LABEL_WEIGHTS.double())
    torch.testing.assert_close(loss, expected, rtol=1e-7, atol=1e-9)
    upstream = normal(N, K, seed=5)
    ours = torch.autograd.grad((upstream * loss).sum(), (logits, weight))
    theirs = torch.autograd.grad((upstream * expected).sum(), (logits, weight))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("covariance", ["full", "low_rank"])
def test_gradients_are_those_of_differences(covariance, bound):
    criterion = criterion_for(covariance=covariance, bound=bound, lambda_0=0.1, pos_weight=PRESENT)
    features, weight, targets = sample()
    weight = weight / 2
    criterion(logits_of(features, weight), targets, features=features, weight=weight)

    def loss(logits, weight):
        with criterion.held():
            return criterion(logits, targets, features=features, weight=weight)

    inputs = (logits_of(features, weight).requires_grad_(), weight.requires_grad_())
    assert torch.autograd.gradcheck(loss, inputs)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_reductions_are_those_of_the_labels(reduction):
    features, weight, targets = sample()
    logits = logits_of(features, weight)
    losses = criterion_for(reduction="none")(logits, targets, features=features, weight=weight)
    loss = criterion_for(reduction=reduction)(logits, targets, features=features, weight=weight)
    torch.testing.assert_close(loss, getattr(losses, reduction)())


def test_the_expectation_lies_between_plain_and_jensen_and_is_that_of_moved_features():
    features, weight, targets = sample()
    logits = logits_of(features, weight)
    losses = {}
    for bound in BOUNDS:
        criterion = criterion_for(bound=bound, reduction="none")
        losses[bound] = criterion(logits, targets, features=features, weight=weight)
    plain = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    assert (plain < losses["exact"]).all()
    assert (losses["exact"] < losses["jensen"]).all()
    generator = torch.Generator().manual_seed(0)
    moved = criterion.covariance.sample(
        torch.zeros(N, dtype=torch.int64), 40_000, features=features, strength=LAMBDA, generator=generator
    )
    draws = F.binary_cross_entropy_with_logits(
        moved @ weight.t(), targets.unsqueeze(1).expand(-1, 40_000, -1), reduction="none"
    )
    error = draws.std(1) / math.sqrt(draws.shape[1])
    assert ((losses["exact"] - draws.mean(1)).abs() < 4.5 * error).all()


@pytest.mark.parametrize("bound", BOUNDS)
def test_pixels_are_rows(bound):
    features, weight, targets = sample(pixels=(2, 3))
    logits = logits_of(features, weight)
    criterion = criterion_for(bound=bound, reduction="none", pos_weight=PRESENT, class_weight=LABEL_WEIGHTS)
    loss = criterion(logits, targets, features=features, weight=weight.view(K, A, 1, 1))
    (sigma,) = class_covariances("full", rows_of(features), [0] * N * 6, 1)
    expected = naive(
        bound, rows_of(logits), rows_of(targets), weight, sigma, LAMBDA, PRESENT.double(), LABEL_WEIGHTS.double()
    )
    torch.testing.assert_close(rows_of(loss), expected, rtol=1e-7, atol=1e-9)
    assert criterion.covariance.count.tolist() == [N * 6]


def test_features_may_be_coarser_than_logits():
    coarse, weight, _ = sample(pixels=(2, 2))
    logits = F.interpolate(logits_of(coarse, weight), scale_factor=2, mode="bilinear")
    targets = (logits > 0).double()
    criterion = criterion_for(reduction="none")
    loss = criterion(logits, targets, features=coarse, weight=weight)
    (sigma,) = class_covariances("full", rows_of(coarse), [0] * N * 4, 1)
    expected = naive("jensen", rows_of(logits), rows_of(targets), weight, sigma, LAMBDA)
    torch.testing.assert_close(rows_of(loss), expected)


@pytest.mark.parametrize("bound", BOUNDS)
def test_a_head_of_zeros_gets_finite_gradients(bound):
    features, _, targets = sample()
    weight = torch.zeros(K, A, dtype=torch.float64, requires_grad=True)
    criterion = criterion_for(bound=bound)
    loss = criterion(features @ weight.t(), targets, features=features, weight=weight)
    torch.testing.assert_close(loss.detach(), torch.tensor(math.log(2), dtype=torch.float64))
    loss.backward()
    plain = torch.zeros(K, A, dtype=torch.float64, requires_grad=True)
    F.binary_cross_entropy_with_logits(features @ plain.t(), targets).backward()
    torch.testing.assert_close(weight.grad, plain.grad)


# -- unlabelled samples ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_consistency_is_the_loss_of_the_own_prediction_and_changes_nothing(bound, reduction):
    features, weight, targets = sample()
    criterion = criterion_for(bound=bound, reduction=reduction, pos_weight=PRESENT)
    criterion(logits_of(features, weight), targets, features=features, weight=weight)
    before = state_of(criterion)
    logits = normal(5, K, seed=8).requires_grad_()
    loss = criterion.consistency(logits, weight=weight, strength=0.4)
    (sigma,) = class_covariances("full", features, [0] * N, 1)
    expected = naive(bound, logits, logits.detach().sigmoid(), weight, sigma, 0.4)
    expected = expected if reduction == "none" else getattr(expected, reduction)()
    torch.testing.assert_close(loss, expected, rtol=1e-7, atol=1e-9)
    ours, theirs = (torch.autograd.grad(value.sum(), logits)[0] for value in (loss, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)
    assert_same_state(criterion, before)
