"""Where the rival losses are cross-entropy, what moves what, extreme logits, half precision, and what is refused."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from isda.losses.rivals import lq_rows
from loss_oracles import assert_same_state, normal, state_of
from rival_cases import CASES, CLASSES, DIM, MAKERS, make_inputs

from isda import ISDALoss
from isda.losses import (
    CenterLoss,
    ConfidencePenalty,
    DistributionNet,
    DisturbLabel,
    FocalLoss,
    LabelSmoothing,
    LargeMarginLoss,
    LqLoss,
)


def loss_and_gradients(criterion, inputs, name=""):
    loss = criterion(inputs.logits, inputs.targets, **inputs.given(name))
    return (loss, *torch.autograd.grad(loss, inputs[2:]))


def plain(dtype=torch.float64):
    inputs = make_inputs(dtype=dtype)
    loss = F.cross_entropy(inputs.logits, inputs.targets)
    return (loss, *torch.autograd.grad(loss, inputs[2:]))


EXACT = {
    "label-smoothing": LabelSmoothing(0.0),
    "disturb-label": DisturbLabel(0.0),
    "large-margin": LargeMarginLoss(1),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", EXACT)
def test_cross_entropy_to_the_bit(name, dtype):
    found = loss_and_gradients(EXACT[name].train(), make_inputs(dtype=dtype), name)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, plain(dtype), strict=True))


def without_variance():
    criterion = DistributionNet(DIM, uncertainty_weight=0.0, dtype=torch.float64)
    torch.nn.init.constant_(criterion.head.bias, -torch.inf)
    return criterion


@pytest.mark.parametrize(
    ("criterion", "name", "factor"),
    [
        (FocalLoss(0.3, 0.0), "focal", 0.3),
        (FocalLoss(1.0, 1e-12), "focal", 1.0),
        (LqLoss(0.0), "lq", 1.0),
        (LqLoss(1e-300), "lq", 1.0),
        (LqLoss(1e-12), "lq", 1.0),
        (ConfidencePenalty(0.0), "confidence-penalty", 1.0),
        (CenterLoss(CLASSES, DIM, 0.0, dtype=torch.float64), "center", 1.0),
        (without_variance(), "distribution-net", 1.0),
        (LargeMarginLoss(4, base=1e15, gamma=0.0), "large-margin", 1.0),
    ],
)
def test_cross_entropy_in_the_limit(criterion, name, factor):
    found = loss_and_gradients(criterion, make_inputs(), name)
    for ours, theirs in zip(found, plain(), strict=True):
        torch.testing.assert_close(ours, factor * theirs, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("name", ["disturb-label", "large-margin", "distribution-net"])
def test_eval_mode_is_cross_entropy_and_changes_nothing(name):
    criterion = MAKERS[name]().eval()
    before = state_of(criterion)
    found = loss_and_gradients(criterion, make_inputs(), name)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, plain(), strict=True))
    assert_same_state(criterion, before)


@pytest.mark.parametrize("cross_entropy", [1e-30, 1e-7, 1.0, 80.0, 1e4])
@pytest.mark.parametrize("q", [1e-40, 1e-30, 1e-8, 1e-3, 0.4, 1.0])
def test_lq_is_right_for_tiny_q_and_tiny_p_in_float32(q, cross_entropy):
    value = torch.tensor(cross_entropy, requires_grad=True)
    loss = lq_rows(value, q)
    loss.backward()
    exponent = -q * value.item()
    assert loss.item() == pytest.approx(-math.expm1(exponent) / q, rel=1e-6)
    assert value.grad.item() == pytest.approx(math.exp(exponent), rel=1e-5, abs=1e-37)


# -- extreme logits ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.0, 1e-20, 1.0, 1e4, 1e8])
@pytest.mark.parametrize("name", [*MAKERS, "focal-below-1"])
def test_extreme_logits_give_finite_losses_and_gradients(name, scale):
    criterion = FocalLoss(gamma=0.1) if name == "focal-below-1" else MAKERS[name]()
    criterion.to(torch.float32)
    inputs = make_inputs(scale, torch.float32)
    for result in loss_and_gradients(criterion, inputs, name):
        assert bool(result.isfinite().all())


@pytest.mark.parametrize("name", MAKERS)
def test_features_of_zero_give_finite_gradients(name):
    inputs = make_inputs()
    features = torch.zeros_like(inputs.features, requires_grad=True)
    inputs = inputs._replace(features=features, logits=features @ inputs.weight.T)
    for result in loss_and_gradients(MAKERS[name](), inputs, name):
        assert bool(result.isfinite().all())


@pytest.mark.parametrize("name", MAKERS)
def test_under_autocast_the_loss_is_computed_in_float32(name):
    criterion = MAKERS[name]().to(torch.float32)
    inputs = make_inputs(dtype=torch.float32)
    weight, features = inputs.weight, inputs.features
    with torch.autocast("cpu", torch.bfloat16):
        logits = F.linear(features, weight)
        assert logits.dtype == torch.bfloat16
        halves = inputs._replace(logits=logits, features=features.to(torch.bfloat16))
        torch.manual_seed(1)
        state = {key: value.clone() for key, value in criterion.state_dict().items()}
        loss = criterion(logits, inputs.targets, **halves.given(name))
        loss.backward()
    assert loss.dtype == torch.float32
    assert bool(weight.grad.isfinite().all())
    criterion.load_state_dict(state)
    torch.manual_seed(1)
    wide = halves._replace(logits=logits.float().detach(), features=halves.features.float())
    expected = criterion(wide.logits, inputs.targets, **wide.given(name))
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)


# -- what moves what ---------------------------------------------------------------------------------------------------


def moved(criterion, name, inputs):
    """The names of what gets a gradient that is not zero."""
    loss = criterion(inputs.logits, inputs.targets, **inputs.given(name))
    loss.backward()
    named = {"features": inputs.features, "weight": inputs.weight, **dict(criterion.named_parameters())}
    return {key for key, value in named.items() if value.grad is not None and bool(value.grad.any())}


@pytest.mark.parametrize("name", MAKERS)
def test_every_loss_moves_features_and_classifier(name):
    assert moved(MAKERS[name](), name, make_inputs()) >= {"features", "weight"}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # The mean alone: nothing of the Gaussians.
        ({"sample_weight": 0.0, "uncertainty_weight": 0.0}, {"features", "weight"}),
        ({"sample_weight": 1.0, "uncertainty_weight": 0.0}, {"features", "weight", "head.weight", "head.bias"}),
        ({"sample_weight": 0.0, "uncertainty_weight": 1.0}, {"features", "weight", "head.weight", "head.bias"}),
    ],
)
def test_each_term_of_distribution_net_moves_what_it_should(settings, expected):
    criterion = DistributionNet(DIM, dtype=torch.float64, **settings)
    assert moved(criterion, "distribution-net", make_inputs()) == expected


def test_the_uncertainty_term_moves_gaussians_and_features_but_not_the_classifier():
    inputs, criterion = make_inputs(), DistributionNet(DIM, dtype=torch.float64, sample_weight=0.0)
    loss = criterion(inputs.logits.detach(), inputs.targets, features=inputs.features, weight=inputs.weight)
    loss.backward()
    assert inputs.weight.grad is None
    assert bool(inputs.features.grad.any())
    assert bool(criterion.head.weight.grad.any())


def test_the_centre_term_moves_the_features_but_not_the_classifier():
    inputs, criterion = make_inputs(), CenterLoss(CLASSES, DIM, dtype=torch.float64)
    criterion(inputs.logits.detach(), inputs.targets, features=inputs.features).backward()
    assert inputs.weight.grad is None
    assert bool(inputs.features.grad.any())


# -- state -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MAKERS)
def test_a_state_that_is_carried_over_gives_the_same_loss(name):
    first, second = MAKERS[name](), MAKERS[name]()
    for _ in range(2):
        inputs = make_inputs()
        first(inputs.logits, inputs.targets, **inputs.given(name))
    second.load_state_dict(first.state_dict())
    losses = []
    for criterion in (first, second):
        inputs = make_inputs()
        torch.manual_seed(1)
        losses.append(criterion(inputs.logits, inputs.targets, **inputs.given(name)))
    assert torch.equal(*losses)
    assert_same_state(first, state_of(second))


BAD_CALLS = {
    "logits of pixels": ({"logits": torch.zeros(6, 4, 2)}, r"logits must have shape \(N, C\)"),
    "no sample": ({"logits": torch.zeros(0, 4)}, "with at least one sample, got"),
    "integer logits": ({"logits": torch.zeros(6, 4, dtype=torch.int64)}, "logits must be floating point"),
    "soft targets": ({"targets": torch.zeros(6, 4)}, "targets must hold integer class indices"),
    "other targets": ({"targets": torch.zeros(5, dtype=torch.int64)}, r"targets must have shape \(6,\)"),
    "labels out of range": ({"targets": torch.tensor([0, 1, 2, 3, 4, -1])}, r"targets must lie in 0\.\.3, got 4"),
}
BAD_FEATURES = {
    "other features": ({"features": torch.zeros(6, 2)}, r"features must have shape \(6, 3\)"),
    "fewer features": ({"features": torch.zeros(5, 3)}, r"features must have shape \(6, 3\)"),
    "integer features": ({"features": torch.zeros(6, 3, dtype=torch.int64)}, "features must be floating point"),
}


BAD_WEIGHT = {"other weight": ({"weight": torch.zeros(4, 2)}, r"weight must have shape \(4, 3\)")}
OTHER_CLASSES = {
    "center": r"logits must have shape \(N, 4\)",
    "large-margin": r"weight must have shape \(5, 3\)",
    "distribution-net": r"weight must have shape \(5, 3\)",
}


def bad_calls():
    """Every loss with what is wrong for it, and what it says."""
    for name in MAKERS:
        given = CASES[name].inputs if name in CASES else ()
        calls = BAD_CALLS | (BAD_FEATURES if "features" in given else {}) | (BAD_WEIGHT if "weight" in given else {})
        for bad, (change, message) in calls.items():
            if (name, bad) == ("large-margin", "other features"):  # it has no size of its own to compare with
                message = r"weight must have shape \(4, 2\), got \(4, 3\)"
            yield pytest.param(name, change, message, id=f"{name}-{bad}")
    for name, message in OTHER_CLASSES.items():
        yield pytest.param(name, {"logits": torch.zeros(6, 5)}, message, id=f"{name}-other classes")


@pytest.mark.parametrize(("name", "change", "message"), list(bad_calls()))
def test_a_bad_call_is_refused_before_any_state_changes(name, change, message):
    inputs, criterion = make_inputs(), MAKERS[name]()
    before = state_of(criterion)
    given = {"logits": inputs.logits, "targets": inputs.targets, **inputs.given(name)}
    with pytest.raises(ValueError, match=message):
        criterion(**given | change)
    assert_same_state(criterion, before)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FocalLoss(alpha=-1), "alpha must be a finite number >= 0, got -1"),
        (lambda: FocalLoss(gamma=float("nan")), "gamma must be a finite number >= 0, got nan"),
        (lambda: FocalLoss(reduction="average"), "reduction must be one of mean, sum, none, got 'average'"),
        (lambda: LqLoss(1.5), r"q must be a number in 0\.\.1, got 1\.5"),
        (lambda: LabelSmoothing(-0.1), r"smoothing must be a number in 0\.\.1, got -0\.1"),
        (lambda: DisturbLabel(2.0), r"rate must be a number in 0\.\.1, got 2\.0"),
        (lambda: ConfidencePenalty(float("inf")), "beta must be a finite number >= 0, got inf"),
        (lambda: CenterLoss(3, 2, weight=-1.0), r"weight must be a finite number >= 0, got -1\.0"),
        (lambda: CenterLoss(3, 2, rate=1.5), r"rate must be a number in 0\.\.1, got 1\.5"),
        (lambda: LargeMarginLoss(0), "margin must be an integer from 1 to 10, got 0"),
        (lambda: LargeMarginLoss(1.5), r"margin must be an integer from 1 to 10, got 1\.5"),
        (lambda: LargeMarginLoss(lambda_min=-1), "lambda_min must be a finite number >= 0, got -1"),
        (lambda: DistributionNet(3, samples=0), "samples must be an integer from 1 to 100, got 0"),
        (lambda: DistributionNet(3, deviation=0.0), r"deviation must be a finite number > 0, got 0\.0"),
        (lambda: DistributionNet(3, sample_weight=-1), "sample_weight must be a finite number >= 0, got -1"),
    ],
)
def test_a_setting_out_of_range_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# -- on top of ISDA ----------------------------------------------------------------------------------------------------

SIZES = {"num_classes": CLASSES, "feature_dim": DIM}


@pytest.mark.parametrize(
    ("base", "message"),
    [
        (ISDALoss(**SIZES), "cross_entropy must have reduction='none' .* got reduction='mean'"),
        (ISDALoss(**SIZES, reduction="none", label_smoothing=0.1), r"label_smoothing=0\.0 .* got label_smoothing=0\.1"),
        (ISDALoss(**SIZES, reduction="none", class_weight=torch.ones(CLASSES)), "must have class_weight=None"),
        (ISDALoss(**SIZES, reduction="none", covariance="learned"), "uncertainty_weight must be 0"),
    ],
)
def test_a_base_that_is_no_cross_entropy_per_sample_is_refused(base, message):
    with pytest.raises(ValueError, match=message):
        FocalLoss(cross_entropy=base)


@pytest.mark.parametrize("bound", ["jensen", "tilted"])
@pytest.mark.parametrize("make", [FocalLoss, LqLoss, ConfidencePenalty, LabelSmoothing, DisturbLabel])
def test_on_top_of_isda_the_loss_is_that_of_the_bound(make, bound):
    """Attached to a model: the rows of the bound, then the formula; one pass feeds the statistics once."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, DIM), torch.nn.Tanh(), torch.nn.Linear(DIM, CLASSES)).double()
    twin = ISDALoss(**SIZES, schedule="constant", lambda_0=2.0, bound=bound, reduction="none", dtype=torch.float64)
    base = ISDALoss.attach(model, lambda_0=2.0, bound=bound, reduction="none", schedule="constant")
    criterion = make(cross_entropy=base)
    for seed in range(2):
        x, targets = normal(8, 5, seed=seed), torch.arange(8) % CLASSES
        logits, features = model(x), model[:2](x)
        torch.manual_seed(3)
        loss = criterion(logits, targets)
        rows = twin(logits, targets, features=features, weight=model[2].weight)
        p = torch.exp(-rows)
        torch.manual_seed(3)
        aims = torch.where(torch.rand(8) < 0.05, torch.randint(CLASSES, (8,)), targets)
        own = logits[torch.arange(8), targets]
        expected = {
            FocalLoss: 0.5 * (1 - p) * rows,
            LqLoss: (1 - p**0.4) / 0.4,
            ConfidencePenalty: rows + 0.1 * (logits.softmax(1) * logits.log_softmax(1)).sum(1),
            LabelSmoothing: rows + 0.1 * (own - logits.mean(1)),
            DisturbLabel: rows + own - logits[torch.arange(8), aims],
        }[make].mean()
        torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-10)
    assert torch.equal(base.covariance.count, twin.covariance.count)
    loss.backward()
    assert all(bool(p.grad.any()) for p in model.parameters())


def test_label_smoothing_on_top_of_isda_is_isdas_own():
    inputs = make_inputs()
    model = torch.nn.Linear(DIM, CLASSES).double()
    smooth = ISDALoss(**SIZES, schedule="constant", lambda_0=2.0, label_smoothing=0.1, dtype=torch.float64)
    criterion = LabelSmoothing(
        0.1, cross_entropy=ISDALoss.attach(model, lambda_0=2.0, reduction="none", schedule="constant")
    )
    logits = model(inputs.features)
    expected = smooth(logits, inputs.targets, features=inputs.features, weight=model.weight)
    torch.testing.assert_close(criterion(logits, inputs.targets), expected, rtol=1e-10, atol=1e-10)


def test_a_bad_call_on_top_of_isda_leaves_its_statistics_alone():
    model = torch.nn.Linear(DIM, CLASSES)
    base = ISDALoss.attach(model, reduction="none", schedule="constant")
    criterion = CenterLoss(CLASSES, DIM, cross_entropy=base)
    logits = model(torch.randn(6, DIM))
    with pytest.raises(ValueError, match="features must have shape"):
        criterion(logits, torch.arange(6) % CLASSES, features=torch.zeros(6, 2))
    assert int(base.covariance.count.sum()) == 0


@pytest.mark.parametrize(
    ("criterion", "stated"),
    [
        (LargeMarginLoss(), LargeMarginLoss(2, base=1000.0, gamma=2e-5, power=45.0, lambda_min=0.0)),
        (FocalLoss(), FocalLoss(alpha=0.5, gamma=1.0)),
        (LqLoss(), LqLoss(q=0.4)),
        (LabelSmoothing(), LabelSmoothing(smoothing=0.1)),
    ],
    ids=lambda criterion: type(criterion).__name__,
)
def test_settings_are_those_that_the_documentation_states(criterion, stated):
    settings = {name: value for name, value in vars(criterion).items() if isinstance(value, int | float)}
    assert settings
    assert settings == {name: getattr(stated, name) for name in settings}
