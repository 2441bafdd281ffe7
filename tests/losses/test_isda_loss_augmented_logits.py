"""augmented_logits() for other criteria, and the warning about a variance term that swamps the logits."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from loss_oracles import (
    COVARIANCES,
    assert_same_state,
    bilinear,
    bound_rows,
    class_covariances,
    jensen_tilts,
    maps_of,
    nearest_labels,
    normal,
    rows_of,
    state_of,
)

from isda import ISDALoss
from isda.losses.monitors import StrengthMonitor

CLASSES, DIM, ROWS, STRENGTH = 4, 5, 9, 0.8
LABELS = torch.arange(ROWS) % 3


def learned_from(kind="full", bound="jensen", **settings):
    criterion = ISDALoss(
        CLASSES, DIM, 1.0, covariance=kind, bound=bound, dtype=torch.float64, schedule="constant", **settings
    )
    features, labels = normal(15, DIM, seed=1), torch.arange(15) % CLASSES
    criterion.covariance.update(features, labels)
    return criterion, class_covariances("full", features, labels, CLASSES)


def logits_and_weight():
    return normal(ROWS, CLASSES, seed=2).requires_grad_(), normal(CLASSES, DIM, seed=3).requires_grad_()


def test_values_equal_the_oracle():
    criterion, sigmas = learned_from()
    logits, weight = logits_and_weight()
    augmented = criterion.augmented_logits(logits, LABELS, weight=weight, strength=STRENGTH)
    expected = bound_rows(logits, weight, sigmas, LABELS, jensen_tilts(LABELS, CLASSES), STRENGTH)
    torch.testing.assert_close(augmented, expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize("kind", COVARIANCES)
def test_its_cross_entropy_is_the_jensen_loss(kind):
    criterion, _ = learned_from(kind)
    logits, weight = logits_and_weight()
    features = normal(ROWS, DIM, seed=5)
    loss = criterion(logits, LABELS, features=features, weight=weight, strength=STRENGTH)
    again = F.cross_entropy(criterion.augmented_logits(logits, LABELS, weight=weight, strength=STRENGTH), LABELS)
    torch.testing.assert_close(again, loss, atol=1e-12, rtol=0)
    for ours, theirs in zip(
        torch.autograd.grad(again, [logits, weight]), torch.autograd.grad(loss, [logits, weight]), strict=True
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)


def test_tilted_its_logsumexp_less_the_own_logit_is_the_tilted_loss():
    criterion, _ = learned_from(bound="tilted", reduction="none")
    logits, weight = logits_and_weight()
    loss = criterion(logits, LABELS, features=normal(ROWS, DIM, seed=5), weight=weight, strength=STRENGTH)
    augmented = criterion.augmented_logits(logits, LABELS, weight=weight, strength=STRENGTH)
    own = logits.gather(1, LABELS[:, None])[:, 0]
    torch.testing.assert_close(torch.logsumexp(augmented, 1) - own, loss, atol=1e-12, rtol=0)


@pytest.mark.parametrize("bound", ["jensen", "tilted"])
def test_ignored_rows_come_back_unchanged(bound):
    criterion, _ = learned_from(bound=bound)
    logits, weight = logits_and_weight()
    targets = LABELS.clone()
    targets[[0, 5]] = -100
    augmented = criterion.augmented_logits(logits, targets, weight=weight, strength=STRENGTH)
    assert torch.equal(augmented[[0, 5]], logits[[0, 5]])
    rest = [1, 2, 3, 4, 6, 7, 8]
    assert (augmented[rest] != logits[rest]).any(1).all()


def test_pixels_get_the_variances_of_their_nearest_label():
    criterion, sigmas = learned_from()
    logits, weight = normal(2, CLASSES, 2, 3, seed=6), normal(CLASSES, DIM, seed=3)
    targets = torch.randint(0, CLASSES, (2, 5, 7), generator=torch.Generator().manual_seed(7))
    augmented = criterion.augmented_logits(logits, targets, weight=weight, strength=STRENGTH)
    classes = nearest_labels(targets, 2, 3).flatten()
    rows = bound_rows(rows_of(logits), weight, sigmas, classes, jensen_tilts(classes, CLASSES), STRENGTH)
    torch.testing.assert_close(augmented, maps_of(rows, 2, 2, 3), atol=1e-10, rtol=0)
    features = normal(2, DIM, 2, 3, seed=8)
    loss = criterion(logits, targets, features=features, weight=weight, strength=STRENGTH)
    augmented = criterion.augmented_logits(logits, targets, weight=weight, strength=STRENGTH)
    again = F.cross_entropy(bilinear(augmented, 5, 7), targets)
    torch.testing.assert_close(again, loss, atol=1e-10, rtol=0)


def test_distributions_use_the_covariance_of_their_largest_share():
    criterion, _ = learned_from()
    logits, weight = logits_and_weight()
    shares = 0.7 * F.one_hot(LABELS, CLASSES) + 0.3 / CLASSES
    soft = criterion.augmented_logits(logits, shares.double(), weight=weight, strength=STRENGTH)
    hard = criterion.augmented_logits(logits, LABELS, weight=weight, strength=STRENGTH)
    assert torch.equal(soft, hard)


def test_another_criterion_can_be_trained_on_it():
    criterion, _ = learned_from()
    logits, weight = logits_and_weight()
    focal_weight = 2.0
    augmented = criterion.augmented_logits(logits, LABELS, weight=weight, strength=STRENGTH)
    log_p = torch.log_softmax(augmented, 1).gather(1, LABELS[:, None])[:, 0]
    (-((1 - log_p.exp()) ** focal_weight) * log_p).mean().backward()
    assert logits.grad.abs().sum() > 0
    assert weight.grad.abs().sum() > 0


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", COVARIANCES)
def test_no_state_changes(kind, training):
    criterion, _ = learned_from(kind)
    criterion.train(training)
    before = state_of(criterion)
    logits, weight = logits_and_weight()
    criterion.augmented_logits(logits, LABELS, weight=weight).sum().backward()
    assert_same_state(criterion, before)


def test_the_current_strength_is_the_default():
    criterion, _ = learned_from()
    criterion.schedule.kind, criterion.schedule.total_steps = "linear", 10
    criterion.schedule.step.fill_(3)
    logits, weight = logits_and_weight()
    expected = criterion.augmented_logits(logits, LABELS, weight=weight, strength=0.3)
    assert torch.equal(criterion.augmented_logits(logits, LABELS, weight=weight), expected)


# -- the warning ---------------------------------------------------------------------------------------------------


def run(lambda_0, steps, **settings):
    """Steps of a run with features of about unit length and logits of ordinary size."""
    criterion = ISDALoss(10, 32, lambda_0, **({"schedule": "constant"} | settings))
    weight = 0.2 * normal(10, 32, seed=1, dtype=torch.float32)
    for seed in range(steps):
        features = normal(20, 32, seed=seed, dtype=torch.float32)
        criterion(features @ weight.t(), torch.arange(20) % 10, features=features, weight=weight)


@pytest.mark.parametrize("bound", ["jensen", "tilted"])
def test_a_variance_term_that_swamps_the_logits_is_warned_about(bound):
    with pytest.warns(UserWarning, match="swamps them, and training may diverge") as caught:
        run(500.0, 1, bound=bound)
    assert [warning.filename for warning in caught] == [__file__]  # the caller's line, not one of ours


def test_a_schedule_that_ends_far_too_high_is_warned_about_on_the_way():
    with pytest.warns(UserWarning, match="swamps them, and training may diverge"):
        run(500.0, 102, schedule="linear", total_steps=101, covariance="diagonal")


@pytest.mark.parametrize("bound", ["jensen", "tilted"])
def test_a_sane_run_warns_about_nothing(bound):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(0.5, 120, bound=bound, covariance="diagonal", schedule="linear", total_steps=100)


def test_a_warning_of_augmented_logits_names_the_line_that_called_it():
    criterion = ISDALoss(3, 4, 1.0, covariance="identity", schedule="constant")
    with pytest.warns(UserWarning, match="swamps them") as caught:
        criterion.augmented_logits(torch.zeros(2, 3), torch.tensor([0, 1]), weight=9 * torch.eye(3, 4))
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize(("variance", "warns"), [(3.9, False), (4.1, True)])
def test_the_warning_comes_at_ten_times_the_spread_and_says_both(variance, warns):
    logits = torch.tensor([[0.2, -0.2], [0.2, -0.2], [0.6, 0.2]])  # every row varies by 0.2
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        StrengthMonitor().check(torch.full((3, 2), variance), logits, strength=1.0)
    assert len(caught) == warns
    if warns:
        assert "averages 2.05 where the logits of a sample vary by 0.2: at strength 1 " in str(caught[0].message)
        assert "lower the learning rate, lower lambda_0" in str(caught[0].message)


def looks(monitor, ratios):
    """The calls in which a monitor warns, given the strengths of calls and what the variance is at strength 2."""
    warned, logits = [], torch.tensor([[0.5, -0.5]])
    for call, (strength, variance) in enumerate(ratios, 1):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            monitor.check(torch.full((1, 2), float(variance)), logits, strength=strength)
        warned += [call] * len(caught)
    return warned


def test_every_call_is_looked_at_and_a_ratio_is_warned_of_again_when_it_has_doubled():
    calls = [(0.0, 1e9)] + [(2.0, 1.0)] * 50 + [(2.0, 6.0), (2.0, 7.0), (2.0, 13.0), (2.0, 25.0)]
    # Ratios of 2 up to call 51, then 12, 14, 26 and 50; there is nothing to look at without a strength.
    assert looks(StrengthMonitor(), calls) == [52, 54]


@pytest.mark.any_device
def test_elsewhere_the_worst_ratio_is_read_every_hundredth_call():
    calls = [(2.0, 1.0)] * 60 + [(2.3, 60.0)] + [(2.3, 1.0)] * 60
    expected = [61] if torch.zeros(1).device.type == "cpu" else [101]
    assert looks(StrengthMonitor(), calls) == expected


def test_a_run_that_diverges_is_warned_of_while_its_loss_is_finite():
    """A large strength and a constant rate: the weights run away within some steps."""
    torch.manual_seed(0)
    head = torch.nn.Linear(6, 4)
    criterion = ISDALoss(4, 6, 50.0, total_steps=60)
    features, targets = torch.randn(40, 6), torch.arange(40) % 4
    optimizer, warned = torch.optim.SGD(head.parameters(), lr=1.0), None
    for step in range(60):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loss = criterion(head(features), targets, features=features, weight=head.weight)
        if caught and warned is None:
            warned = step
            assert "training may diverge" in str(caught[0].message)
        if not torch.isfinite(loss):
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert not torch.isfinite(loss)
    assert warned is not None
    assert warned < step


@pytest.mark.parametrize("bound", ["jensen", "tilted"])
def test_max_ratio_lowers_the_strength_of_a_batch_that_exceeds_it(bound):
    features, targets = normal(30, 6, seed=1), torch.arange(30) % 4
    weight = normal(4, 6, seed=2).requires_grad_()

    def loss(max_ratio, strength):
        criterion = ISDALoss(4, 6, 1.0, bound=bound, max_ratio=max_ratio, dtype=torch.float64, schedule="constant")
        criterion.covariance.update(normal(80, 6, seed=3), torch.arange(80) % 4)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return criterion(features @ weight.t(), targets, features=features, weight=weight, strength=strength)

    assert torch.equal(loss(1e6, 0.5), loss(None, 0.5)), "to the bit within the limit"
    assert loss(1.0, 100.0) < loss(None, 100.0)
    assert bool(torch.autograd.grad(loss(1.0, 100.0), weight)[0].isfinite().all())
    if bound == "jensen":  # lambda is lowered to the one at which the ratio is reached
        criterion = ISDALoss(4, 6, 1.0, dtype=torch.float64, schedule="constant")
        criterion.covariance.update(normal(80, 6, seed=3), torch.arange(80) % 4)
        logits = (features @ weight.t()).detach()
        criterion.covariance.update(features, targets)
        half = criterion.augmented_logits(logits, targets, weight=weight.detach(), strength=1.0) - logits
        strength = float(logits.std(1, correction=0).mean() / half.mean())
        torch.testing.assert_close(loss(1.0, 100.0), loss(None, strength))


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_max_ratio_must_be_positive(value):
    with pytest.raises(ValueError, match="max_ratio must be a positive number or None"):
        ISDALoss(3, 4, max_ratio=value, schedule="constant")


def test_the_limit_is_off_for_numbers_and_one_for_auto():
    assert ISDALoss(3, 4, 0.5, 10).max_ratio is None
    assert ISDALoss(3, 4, "auto").max_ratio == 1
    assert ISDALoss(3, 4, "auto", max_ratio=float("inf")).max_ratio is None
