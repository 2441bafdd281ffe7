"""The rival losses against their formulas, written naively in float64: values, gradients, reductions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from isda.losses.rivals import disturb_labels, margin_function, sampled_cross_entropy
from loss_oracles import normal
from rival_cases import CASES, CLASSES, DIM, MAKERS, ROWS, make_inputs

from isda.functional import feature_uncertainty_loss
from isda.losses import CenterLoss, DisturbLabel, LargeMarginLoss


def made(name, **settings):
    """The criterion of a case, with a state that is not the first one."""
    torch.manual_seed(4)
    criterion = MAKERS[name](**settings)
    if isinstance(criterion, CenterLoss):
        criterion.centres.copy_(normal(CLASSES, DIM, seed=7))
    return criterion


def by_hand(name, criterion, inputs):
    """(N,) the formula, sample by sample; the draws are those that the criterion makes after the same seed."""
    torch.manual_seed(5)
    noise = torch.randn(ROWS, 5, DIM, dtype=torch.float64)
    state = {key: value.clone() for key, value in criterion.state_dict().items()}
    rows = []
    for i, y in enumerate(inputs.targets.tolist()):
        given = {"features": inputs.features[i], "weight": inputs.weight, "state": state}
        if name == "distribution-net":
            given |= {"noise": noise[i], "everyone": inputs.features}
        rows.append(CASES[name].formula(inputs.logits[i], y, **given))
    return torch.stack(rows)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", CASES)
def test_value_and_gradients_are_those_of_the_formula(name, reduction):
    criterion = made(name, reduction=reduction)
    results = []
    for formula in (True, False):
        inputs = make_inputs()
        if formula:
            rows = by_hand(name, criterion, inputs)
            loss = {"mean": rows.mean(), "sum": rows.sum(), "none": rows}[reduction]
        else:
            torch.manual_seed(5)
            loss = criterion(inputs.logits, inputs.targets, **inputs.given(name))
        gradients = torch.autograd.grad((loss * torch.arange(1.0, 1 + loss.numel())).sum(), inputs[2:])
        results.append((loss.detach(), *gradients))
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", CASES)
def test_gradcheck(name):
    criterion = made(name)
    state = {key: value.clone() for key, value in criterion.state_dict().items()}
    bias = normal(CLASSES, seed=3)
    targets = make_inputs().targets

    def loss(features, weight, *parameters):
        torch.manual_seed(5)
        criterion.load_state_dict(state)  # the centres have moved
        inputs = make_inputs()._replace(logits=features @ weight.T + bias, features=features, weight=weight)
        given = (inputs.logits, targets)
        values = dict(zip(dict(criterion.named_parameters()), parameters, strict=True))
        return torch.func.functional_call(criterion, values, given, inputs.given(name))

    inputs = make_inputs()
    parameters = [p.detach().clone().requires_grad_() for p in criterion.parameters()]
    assert torch.autograd.gradcheck(loss, (inputs.features, inputs.weight, *parameters))


@pytest.mark.parametrize("margin", [1, 2, 3, 4, 5])
def test_the_margin_function_is_that_of_the_angle_continuous_and_falling(margin):
    angles = torch.linspace(0.001, torch.pi - 0.001, 1001, dtype=torch.float64)
    k = (angles * margin / torch.pi).floor()
    expected = (-1) ** k * torch.cos(margin * angles) - 2 * k
    found = margin_function(angles.cos(), margin)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    steps = found.diff()
    assert bool((steps <= 0).all())
    assert float(-steps.min()) < 0.02 * margin


@pytest.mark.parametrize("margin", [2, 3, 4])
def test_a_larger_angle_costs_more_than_in_cross_entropy(margin):
    inputs = make_inputs()
    criterion = LargeMarginLoss(margin, base=0.0, reduction="none")
    rows = criterion(inputs.logits, inputs.targets, **inputs.given("large-margin"))
    assert bool((rows > F.cross_entropy(inputs.logits, inputs.targets, reduction="none")).all())


def test_annealing_falls_as_its_authors_have_it():
    inputs = make_inputs()
    criterion = LargeMarginLoss(2, base=1000.0, gamma=0.1, power=2.0, lambda_min=400.0)
    for step in range(1, 8):
        criterion(inputs.logits, inputs.targets, **inputs.given("large-margin"))
        expected = max(400.0, 1000.0 * (1 + 0.1 * step) ** -2.0)
        assert float(criterion.annealing) == pytest.approx(expected, rel=1e-6)
    assert criterion.step == 7


# -- drawn labels ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rate", "num_classes"), [(0.05, 10), (0.5, 3), (1.0, 4)])
def test_labels_are_drawn_with_the_published_probabilities(rate, num_classes):
    count = 40_000
    drawn = disturb_labels(torch.full((count,), 1), num_classes, rate)
    shares = drawn.bincount(minlength=num_classes) / count
    for c, share in enumerate(shares.tolist()):
        expected = 1 - (num_classes - 1) / num_classes * rate if c == 1 else rate / num_classes
        assert abs(share - expected) < 4 * (expected * (1 - expected) / count) ** 0.5


def test_the_loss_of_disturbed_labels_is_cross_entropy_with_them():
    inputs = make_inputs()
    criterion = DisturbLabel(0.9, reduction="none")
    torch.manual_seed(6)
    rows = criterion(inputs.logits, inputs.targets)
    torch.manual_seed(6)
    labels = disturb_labels(inputs.targets, CLASSES, 0.9)
    assert not torch.equal(labels, inputs.targets)
    expected = torch.stack([-torch.log(z.softmax(0)[y]) for z, y in zip(inputs.logits, labels, strict=True)])
    torch.testing.assert_close(rows, expected)
    assert torch.equal(criterion.eval()(*inputs[:2]), F.cross_entropy(*inputs[:2], reduction="none"))


def test_draws_follow_torchs_generator_or_the_one_that_is_given():
    targets = torch.arange(100) % 10
    torch.manual_seed(1)
    first = disturb_labels(targets, 10, 0.5)
    torch.manual_seed(1)
    assert torch.equal(disturb_labels(targets, 10, 0.5), first)
    assert not torch.equal(disturb_labels(targets, 10, 0.5), first)
    generators = [torch.Generator().manual_seed(2) for _ in range(2)]
    assert torch.equal(*(disturb_labels(targets, 10, 0.5, generator) for generator in generators))


# -- centres -----------------------------------------------------------------------------------------------------------


def test_centres_follow_the_features_of_their_class():
    criterion = CenterLoss(CLASSES, DIM, rate=0.3, dtype=torch.float64)
    centres = torch.zeros(CLASSES, DIM, dtype=torch.float64)
    for seed in range(3):
        inputs = make_inputs()._replace(features=normal(ROWS, DIM, seed=seed))
        criterion(inputs.logits, inputs.targets, features=inputs.features)
        for c in range(CLASSES):
            rows = [x for x, y in zip(inputs.features, inputs.targets, strict=True) if y == c]
            centres[c] -= 0.3 * sum(centres[c] - x for x in rows) / (1 + len(rows))
        torch.testing.assert_close(criterion.centres, centres, rtol=1e-12, atol=1e-12)


def test_a_class_that_does_not_occur_and_rows_that_are_not_finite_leave_centres_alone():
    criterion = CenterLoss(3, 2)
    criterion.centres.fill_(1.0)
    features = torch.tensor([[2.0, 2.0], [float("nan"), 0.0], [float("inf"), 0.0]])
    loss = criterion(torch.zeros(3, 3), torch.tensor([0, 0, 1]), features=features)
    assert not bool(loss.isfinite())  # whoever watches the loss hears of it
    torch.testing.assert_close(criterion.centres, torch.tensor([[1.25, 1.25], [1.0, 1.0], [1.0, 1.0]]))


def test_centres_stay_in_eval_mode_and_get_no_gradient():
    inputs = make_inputs()
    criterion = CenterLoss(CLASSES, DIM, dtype=torch.float64).eval()
    criterion(inputs.logits, inputs.targets, features=inputs.features).backward()
    assert not criterion.centres.any()
    assert list(criterion.parameters()) == []


# -- Gaussians ---------------------------------------------------------------------------------------------------------


def test_the_uncertainty_loss_is_that_of_learned_covariances_per_feature():
    inputs, criterion = make_inputs(), made("distribution-net", reduction="none")
    criterion.sample_weight = 0.0
    rows = criterion(inputs.logits, inputs.targets, **inputs.given("distribution-net"))
    added = rows - F.cross_entropy(inputs.logits, inputs.targets, reduction="none")
    entropy = torch.distributions.Normal(0, F.softplus(criterion.head(inputs.features))).entropy().mean(1)
    expected = 0.9 * feature_uncertainty_loss(entropy, criterion.margin)
    assert bool(expected > 0)
    torch.testing.assert_close(added, expected.expand(ROWS))
    criterion.deviation = 1e-6  # wide enough: no pull
    rows = criterion(inputs.logits, inputs.targets, **inputs.given("distribution-net"))
    assert torch.equal(rows, F.cross_entropy(inputs.logits, inputs.targets, reduction="none"))


def test_many_draws_come_near_the_expected_cross_entropy():
    """Two classes: the margin is one Gaussian number, and its expectation an integral."""
    logits, weight = torch.tensor([[0.4, -0.3]], dtype=torch.float64), torch.tensor([[1.0, 0.5], [-0.5, 0.2]]).double()
    deviations = torch.tensor([[0.7, 1.1]], dtype=torch.float64)
    variance = ((weight[1] - weight[0]) ** 2 * deviations[0] ** 2).sum()
    nodes = torch.linspace(-10, 10, 20_001, dtype=torch.float64)
    density = torch.exp(-(nodes**2) / 2) / (2 * torch.pi) ** 0.5
    integrand = F.softplus(logits[0, 1] - logits[0, 0] + variance.sqrt() * nodes) * density
    expected = torch.trapezoid(integrand, nodes)
    noise = torch.randn(1, 100_000, 2, dtype=torch.float64)
    found = sampled_cross_entropy(logits, torch.tensor([0]), weight, deviations, noise)
    assert float(found) == pytest.approx(float(expected), abs=4 * float(variance) ** 0.5 / 100_000**0.5)
