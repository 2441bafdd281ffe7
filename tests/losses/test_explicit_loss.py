"""ExplicitLoss: equal to the loop over its draws, unbiased, below the bound, and in all else as ISDALoss is."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from loss_oracles import COVARIANCES
from torch import nn

from isda import ISDALoss
from isda.covariance import LearnedCovariance
from isda.functional import explicit_loss as functional_loss
from isda.functional import monte_carlo
from isda.lab.methods.semi import SemiSupervised, UnlabelledBatch
from isda.losses import ExplicitLoss
from oracles import explicit_consistency, explicit_loss

N, C, A = 6, 4, 3
LABELS = torch.tensor([0, 3, 1, 3, 2, 0])
SETTINGS = {"low_rank": {"rank": 2}, "learned": {"rank": 2, "uncertainty_weight": 0.0}}


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def criterion_for(covariance="full", kind=ExplicitLoss, num_classes=C, **settings):
    """A criterion that has seen features of every class."""
    settings = SETTINGS.get(covariance, {}) | settings
    criterion = kind(num_classes, A, lambda_0=1.0, covariance=covariance, dtype=torch.float64, **settings)
    criterion.covariance.update(2 * normal(60, A, seed=8), torch.arange(60) % num_classes)
    return criterion


def evaluated(criterion, logits, targets, features, weight, strength=0.7, seed=5):
    """The loss at a strength, without any change of state, and the directions that it draws."""
    torch.manual_seed(seed)
    with criterion.held():
        loss = criterion(logits, targets, features=features, weight=weight, strength=strength)
    torch.manual_seed(seed)
    classes = targets.argmax(1) if targets.is_floating_point() else targets
    return loss, criterion.covariance.sample(classes, criterion.samples).detach()


# -- what it computes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("soft", [False, True])
def test_it_is_the_loop_over_its_draws(covariance, soft):
    criterion = criterion_for(covariance, samples=3)
    features, weight, bias = normal(N, A, seed=1), normal(C, A, seed=2).requires_grad_(), normal(C, seed=3)
    targets = torch.softmax(normal(N, C, seed=4), 1) if soft else LABELS
    logits = F.linear(features, weight, bias)
    loss, directions = evaluated(criterion, logits, targets, features, weight)
    assert directions.abs().sum() > 0
    expected = explicit_loss(features, targets, directions, weight, bias, 0.7)
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=0)
    mine, theirs = torch.autograd.grad(loss, weight)[0], torch.autograd.grad(expected, weight)[0]
    torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("samples", [1, 3])
def test_weights_smoothing_and_ignored_labels_are_torchs(reduction, samples):
    class_weight, targets = torch.tensor([1.0, 2.0, 0.5, 3.0]).double(), torch.tensor([0, 3, -100, 3, 2, 0])
    settings = {"reduction": reduction, "label_smoothing": 0.1, "class_weight": class_weight}
    criterion = criterion_for(samples=samples, **settings)
    features, weight = normal(N, A, seed=1), normal(C, A, seed=2)
    torch.manual_seed(5)
    with criterion.held():
        loss = criterion(features @ weight.t(), targets, features=features, weight=weight, strength=0.7)
    torch.manual_seed(5)
    directions = criterion.covariance.sample(targets.clamp_min(0), samples)
    draws = [
        F.cross_entropy(
            (features + 0.7**0.5 * directions[:, m]) @ weight.t(),
            targets,
            weight=class_weight,
            reduction=reduction,
            label_smoothing=0.1,
        )
        for m in range(samples)
    ]
    torch.testing.assert_close(loss, sum(draws) / samples)


@pytest.mark.parametrize("samples", [1, 2, 5, 20])
def test_it_is_unbiased_and_equals_quadrature_for_two_classes(samples):
    """The margin of two classes is one normal number: its expected cross-entropy by Gauss-Hermite quadrature."""
    criterion, strength, rows = criterion_for(num_classes=2, samples=samples, reduction="none"), 0.7, 4000
    features, weight = normal(1, A, seed=1), normal(2, A, seed=2)
    margin = weight[1] - weight[0]
    deviation = (strength * margin @ criterion.covariance.covariance(0) @ margin).sqrt()
    nodes, quadrature = np.polynomial.hermite_e.hermegauss(120)
    at_nodes = F.softplus(features[0] @ margin + deviation * torch.as_tensor(nodes))
    exact = (at_nodes * torch.as_tensor(quadrature)).sum() / np.sqrt(2 * np.pi)
    logits, targets = (features @ weight.t()).expand(rows, 2), torch.zeros(rows, dtype=torch.long)
    losses, _ = evaluated(criterion, logits, targets, features.expand(rows, A), weight, strength)
    error = losses.std() / rows**0.5
    assert 0 < error < 0.05
    assert (losses.mean() - exact).abs() <= 4 * error


@pytest.mark.parametrize("samples", [1, 2, 5, 20])
@pytest.mark.parametrize("covariance", ["full", "diagonal", "low_rank"])
def test_it_is_unbiased_and_not_above_the_published_bound(covariance, samples):
    criterion, strength, rows = criterion_for(covariance, samples=samples, reduction="none"), 0.7, 3000
    features, weight, targets = normal(1, A, seed=1), normal(C, A, seed=2), torch.ones(rows, dtype=torch.long)
    logits = (features @ weight.t()).expand(rows, C)
    losses, _ = evaluated(criterion, logits, targets, features.expand(rows, A), weight, strength)
    draws = criterion.covariance.sample(targets[:1], 40_000)
    exact = monte_carlo(logits[:1], targets[:1], draws, weight, strength)
    error = (losses.var() / rows + exact.standard_error[0] ** 2).sqrt()
    assert 0 < error < 0.05
    assert (losses.mean() - exact.value[0]).abs() <= 4 * error
    bound = criterion_for(covariance, kind=ISDALoss)
    bound.covariance.load_state_dict(criterion.covariance.state_dict())
    with bound.held():
        above = bound(logits[:1], targets[:1], features=features, weight=weight, strength=strength)
    assert losses.mean() <= above + 4 * error
    assert above > losses.mean() + 4 * error  # and here it is well above: the test can fail


@pytest.mark.parametrize("samples", [1, 2, 5])
def test_without_covariance_it_is_the_cross_entropy(samples):
    criterion = ExplicitLoss(
        C, A, lambda_0=1.0, samples=samples, dtype=torch.float64, reduction="none", schedule="constant"
    )
    features, weight = normal(C, A, seed=1), normal(C, A, seed=2)
    targets = torch.arange(C)  # one feature of each class: no spread
    loss = criterion(features @ weight.t(), targets, features=features, weight=weight)
    expected = F.cross_entropy(features @ weight.t(), targets, reduction="none")
    torch.testing.assert_close(loss, expected, rtol=0 if samples < 3 else 1e-15, atol=0)


@pytest.mark.parametrize("changes", [{"samples": 0}, {"lambda_0": 0.0}])
def test_without_draws_or_strength_it_is_the_cross_entropy_to_the_bit(changes):
    criterion = ExplicitLoss(C, A, **({"lambda_0": 1.0, "schedule": "constant"} | changes))
    for seed in range(3):
        features, weight = normal(N, A, seed=seed), normal(C, A, seed=9).requires_grad_()
        logits = features @ weight.t()
        loss, expected = criterion(logits, LABELS, features=features, weight=weight), F.cross_entropy(logits, LABELS)
        assert torch.equal(loss, expected)
        (mine,), (theirs,) = (torch.autograd.grad(one, weight, retain_graph=True) for one in (loss, expected))
        assert torch.equal(mine, theirs)


def test_a_learned_covariance_gets_the_gradient_of_its_draws_and_of_the_uncertainty_loss():
    model = LearnedCovariance(C, A, rank=2, uncertainty_weight=0.3, uncertainty_margin=50.0, dtype=torch.float64)
    criterion = ExplicitLoss(C, A, lambda_0=1.0, samples=3, covariance=model, schedule="constant")
    features, weight = normal(N, A, seed=1), normal(C, A, seed=2)
    targets = torch.tensor([0, 3, 1, 3, 3, 0])

    def loss_of(factor):
        noise = torch.randn(N, 3, 2, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
        penalty = 50.0 - torch.stack(
            [1 + np.log(2 * np.pi) + 0.5 * torch.logdet(factor[c].t() @ factor[c]) for c in range(C)]
        )
        return functional_loss(features, targets, noise @ factor[targets].mT, weight) + 0.3 * penalty.mean()

    torch.manual_seed(5)
    loss = criterion(features @ weight.t(), targets, features=features, weight=weight)
    loss.backward()
    factor = model.factor.detach().clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss_of(factor), factor)
    torch.testing.assert_close(loss, loss_of(factor))
    torch.testing.assert_close(model.factor.grad, expected)
    assert torch.autograd.gradcheck(loss_of, factor)


# -- it takes the place of ISDALoss ------------------------------------------------------------------------------------


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_statistics_and_schedule_are_those_of_isda(covariance):
    settings = {"lambda_0": 2.0, "total_steps": 5, "covariance": covariance, **SETTINGS.get(covariance, {})}
    explicit, implicit = ExplicitLoss(C, A, samples=2, **settings), ISDALoss(C, A, **settings)
    for seed in range(4):
        features, weight = normal(N, A, seed=seed).float(), normal(C, A, seed=9).float()
        for criterion in (explicit, implicit):
            criterion(features @ weight.t(), LABELS, features=features, weight=weight)
    assert explicit.strength == implicit.strength == 2.0 * 4 / 5
    mine, theirs = explicit.state_dict(), implicit.state_dict()
    assert mine.keys() == theirs.keys()
    for name, value in theirs.items():
        assert torch.equal(mine[name], value)


def test_attached_it_needs_logits_and_targets_only_and_validates_as_cross_entropy():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, A), nn.Tanh(), nn.Linear(A, C)).double()
    criterion = ExplicitLoss.attach(model, lambda_0=1.0, samples=2, schedule="constant")
    images = normal(N, 5, seed=1)
    twin = copy.deepcopy(criterion)
    features, weight = model[:2](images), model[2].weight
    torch.manual_seed(3)
    loss = criterion(model(images), LABELS)
    torch.manual_seed(3)
    torch.testing.assert_close(loss, twin(model[2](features), LABELS, features=features, weight=weight))
    assert loss != F.cross_entropy(model(images), LABELS)
    model.eval()
    with torch.no_grad():
        assert criterion(model(images), LABELS) == F.cross_entropy(model(images), LABELS)
    assert criterion.covariance.count.sum() == N


@pytest.mark.parametrize("kind", [ExplicitLoss, ISDALoss])
def test_a_held_criterion_repeats_its_last_strength_and_changes_nothing(kind):
    criterion = kind(C, A, lambda_0=2.0, total_steps=10, dtype=torch.float64)
    features, weight = normal(N, A, seed=1), normal(C, A, seed=2)

    def call():
        torch.manual_seed(0)
        return criterion(features @ weight.t(), LABELS, features=features, weight=weight)

    losses = [call(), call()]
    before = copy.deepcopy(criterion.state_dict())
    with criterion.held():
        again = [call(), call()]
    assert torch.equal(again[0], losses[1])
    assert torch.equal(again[1], losses[1])
    assert all(torch.equal(value, before[name]) for name, value in criterion.state_dict().items())
    call()
    assert criterion.step == 3


# -- consistency -------------------------------------------------------------------------------------------------------


def test_consistency_is_the_loop_over_draws_of_the_predicted_class():
    criterion = criterion_for(samples=3, reduction="none")
    logits, weight = normal(N, C, seed=1), normal(C, A, seed=2)
    before = copy.deepcopy(criterion.state_dict())
    torch.manual_seed(5)
    loss = criterion.consistency(logits, weight=weight, strength=0.7)
    torch.manual_seed(5)
    directions = criterion.covariance.sample(logits.argmax(1), 3)
    expected = explicit_consistency(logits, torch.softmax(logits, 1), directions, weight, 0.7)
    torch.testing.assert_close(loss, torch.stack(expected))
    assert all(torch.equal(value, before[name]) for name, value in criterion.state_dict().items())


def test_consistency_is_on_average_below_the_bound_and_without_draws_the_entropy():
    criterion, bound = criterion_for(samples=4000, reduction="none"), criterion_for(kind=ISDALoss, reduction="none")
    logits, weight = normal(3, C, seed=1), normal(C, A, seed=2)
    loss = criterion.consistency(logits, weight=weight, strength=0.7)
    prediction = torch.softmax(logits, 1)
    entropy = -(prediction * prediction.log()).sum(1)
    assert (entropy < loss).all()
    assert (loss < bound.consistency(logits, weight=weight, strength=0.7)).all()
    torch.testing.assert_close(criterion_for(samples=0).consistency(logits, weight=weight), entropy.mean())


def test_the_semi_supervised_objective_takes_it():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(5, A), nn.Tanh(), nn.Linear(A, C)).double()
    criterion = criterion_for(samples=2, schedule="constant")
    objective = SemiSupervised(network, criterion, consistency_weight=2.0)
    images, others = normal(N, 5, seed=1), normal(7, 5, seed=2)
    torch.manual_seed(1)
    terms, _ = objective(network, images, LABELS, UnlabelledBatch(others))
    torch.manual_seed(1)
    criterion.covariance.sample(LABELS, 2)  # the labelled draws come first
    consistency = criterion.consistency(network(others), weight=network[2].weight, strength=1.0)
    torch.testing.assert_close(terms["consistency"], 2.0 * consistency)
    terms["consistency"].backward()
    assert network[0].weight.grad.abs().sum() > 0


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("samples", [-1, 1.5])
def test_a_number_of_samples_that_is_none_is_refused(samples):
    with pytest.raises(ValueError, match=f"samples must be an integer >= 0, got {samples}"):
        ExplicitLoss(C, A, samples=samples, schedule="constant")


def test_an_unknown_setting_is_refused_by_name():
    with pytest.raises(ValueError, match=r"ExplicitLoss has no setting 'sample' .*did you mean 'samples'\?"):
        ExplicitLoss(C, A, sample=3, schedule="constant")


def test_pixels_are_refused_before_anything_changes():
    criterion = ExplicitLoss(C, A, schedule="constant")
    logits, features = torch.randn(2, C, 5, 5), torch.randn(2, A, 5, 5)
    message = r"logits must have shape \(N, C\) for explicit augmentation, got \(2, 4, 5, 5\)"
    with pytest.raises(ValueError, match=message):
        criterion(logits, torch.zeros(2, 5, 5).long(), features=features, weight=torch.randn(C, A))
    with pytest.raises(ValueError, match=message):
        criterion.consistency(logits, weight=torch.randn(C, A))
    assert criterion.covariance.count.sum() == 0
