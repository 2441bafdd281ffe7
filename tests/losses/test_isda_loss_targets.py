"""Class weights, label smoothing, reductions, ignored and soft targets at lambda > 0: F(a) - q.z, class by class."""

import warnings

import pytest
import torch
from loss_oracles import (
    assert_same_state,
    bound_rows,
    class_covariances,
    jensen_tilts,
    library_tilt,
    normal,
    one_hot,
    row_loss,
    smoothed,
    state_of,
)

import pretend_accelerator
from isda import ISDALoss

CLASSES, DIM, ROWS, STRENGTH = 4, 3, 9, 0.9
IGNORED = -7
CLASS_WEIGHT = torch.tensor([0.5, 2.0, 1.0, 1.5], dtype=torch.float64)
LABELS = torch.tensor([0, 1, 2, 3, 0, 1, 0, 2, 1])


def inputs():
    features = 1.2 * normal(ROWS, DIM, seed=1)
    logits = normal(ROWS, CLASSES, seed=2).requires_grad_()
    weight = normal(CLASSES, DIM, seed=3).requires_grad_()
    return logits, features, weight


def make(bound, **settings):
    return ISDALoss(
        CLASSES, DIM, bound=bound, ignore_index=IGNORED, dtype=torch.float64, schedule="constant", **settings
    )


def oracle(criterion, logits, features, weight, targets, smoothing=0.0, class_weight=None, reduction="mean"):
    """Rows that are ignored count nowhere; the mean of class indices is weighted by w_y, that of distributions not."""
    soft = targets.is_floating_point()
    classes = targets.argmax(1) if soft else targets
    keep = [i for i in range(ROWS) if soft or int(targets[i]) != IGNORED]
    sigmas = class_covariances("full", features[keep], classes[keep], CLASSES)
    tilts = jensen_tilts(classes[keep], CLASSES)
    if criterion.bound == "tilted":
        chosen = classes.where(classes != IGNORED, 0)
        tilts = library_tilt(criterion, logits.detach(), chosen, weight.detach(), STRENGTH)[keep]
    augmented = bound_rows(logits[keep], weight, sigmas, classes[keep], tilts, STRENGTH)
    losses = {i: logits.new_zeros(()) for i in range(ROWS)}
    for row, i in zip(augmented, keep, strict=True):
        share = targets[i] if soft else one_hot(int(targets[i]), CLASSES)
        losses[i] = row_loss(row, logits[i], smoothed(share, smoothing), class_weight)
    if reduction == "none":
        return torch.stack([losses[i] for i in range(ROWS)])
    total = sum(losses.values())
    if reduction == "sum":
        return total
    weights = [1.0] * CLASSES if class_weight is None else class_weight
    return total / (ROWS if soft else sum(weights[int(targets[i])] for i in keep))


def assert_same(loss, expected, leaves):
    torch.testing.assert_close(loss, expected, atol=1e-10, rtol=0)
    ours = torch.autograd.grad(loss.sum(), leaves)
    theirs = torch.autograd.grad(expected.sum(), leaves)
    for grad, reference in zip(ours, theirs, strict=True):
        torch.testing.assert_close(grad, reference, atol=1e-10, rtol=0)


def with_ignored_rows():
    targets = LABELS.clone()
    targets[[1, 4]] = IGNORED
    return targets


def mixup():
    """Two labels per sample, one of them dominant."""
    share = torch.linspace(0.55, 0.95, ROWS, dtype=torch.float64).unsqueeze(1)
    eye = torch.eye(CLASSES, dtype=torch.float64)
    return share * eye[LABELS] + (1 - share) * eye[LABELS.flip(0)]


TARGETS = {"labels": LABELS, "ignored": with_ignored_rows(), "mixup": mixup()}


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("class_weight", [None, CLASS_WEIGHT], ids=["unweighted", "weighted"])
@pytest.mark.parametrize("targets", TARGETS)
@pytest.mark.parametrize("bound", ["jensen", "tilted"])
def test_loss_equals_the_oracle(bound, targets, class_weight, smoothing, reduction):
    targets = TARGETS[targets]
    logits, features, weight = inputs()
    criterion = make(bound, class_weight=class_weight, label_smoothing=smoothing, reduction=reduction)
    loss = criterion(logits, targets, features=features, weight=weight, strength=STRENGTH)
    expected = oracle(criterion, logits, features, weight, targets, smoothing, class_weight, reduction)
    assert_same(loss, expected, [logits, weight])


@pytest.mark.parametrize("bound", ["jensen", "tilted"])
def test_ignored_rows_feed_no_statistics_and_get_no_gradient(bound):
    logits, features, weight = inputs()
    targets = with_ignored_rows()
    features[1] = torch.nan
    criterion = make(bound)
    criterion(logits, targets, features=features, weight=weight, strength=STRENGTH).backward()
    assert criterion.covariance.count.tolist() == [2, 2, 2, 1]
    assert criterion.covariance.scatter.isfinite().all()
    assert not logits.grad[[1, 4]].any()
    assert weight.grad.isfinite().all()


@pytest.mark.any_device
@pytest.mark.parametrize("covariance", ["full", "diagonal", "shared", "identity"])
def test_batches_of_ignored_rows_are_warned_of_once(covariance):
    """On a device at its first look, without one of its own."""
    criterion = ISDALoss(3, 4, 0.5, covariance=covariance, schedule="constant")
    features, weight = torch.randn(6, 4), torch.randn(3, 4)
    ignored = torch.full((6,), -100)
    with pytest.warns(UserWarning, match="every target of a batch is ignored.*check the labels and ignore_index"):
        criterion(features @ weight.t(), ignored, features=features, weight=weight)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for targets in (ignored, torch.arange(6) % 3):
            criterion(features @ weight.t(), targets, features=features, weight=weight)
        criterion.eval()
    assert criterion.covariance.count.sum() == 6


@pytest.mark.any_device
def test_ignored_batches_after_the_first_look_are_reported_when_training_ends():
    criterion = ISDALoss(3, 4, 0.5, covariance="diagonal", schedule="constant")
    features, weight = torch.randn(6, 4), torch.randn(3, 4)
    criterion(features @ weight.t(), torch.arange(6) % 3, features=features, weight=weight)

    def end_training():
        criterion(features @ weight.t(), torch.full((6,), -100), features=features, weight=weight)
        criterion.eval()

    with pytest.warns(UserWarning, match="every target of a batch is ignored"):
        end_training()


@pytest.mark.filterwarnings("ignore:every target of a batch is ignored")
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("bound", ["jensen", "tilted"])
@pytest.mark.parametrize("covariance", ["full", "diagonal", "low_rank", "shared", "identity", "learned"])
def test_a_batch_of_ignored_rows_gives_what_cross_entropy_gives_and_teaches_nothing(covariance, bound, smoothing):
    logits, features, weight = inputs()
    targets = torch.full((ROWS,), IGNORED)
    values = {}
    for reduction in ("mean", "sum", "none"):
        criterion = make(bound, covariance=covariance, reduction=reduction, label_smoothing=smoothing)
        values[reduction] = criterion(logits, targets, features=features, weight=weight, strength=STRENGTH)
        assert criterion.covariance.count.sum() == 0
    assert values["mean"].isnan()
    assert values["sum"].item() == 0
    assert torch.equal(values["none"], torch.zeros(ROWS, dtype=torch.float64))
    values["sum"].backward()
    assert not logits.grad.any()


def test_the_dominant_class_of_a_soft_target_feeds_the_statistics():
    logits, features, weight = inputs()
    criterion = make("jensen")
    criterion(logits, mixup(), features=features, weight=weight, strength=STRENGTH)
    assert torch.equal(criterion.covariance.count, torch.bincount(LABELS, minlength=CLASSES))
    expected = class_covariances("full", features, LABELS, CLASSES)
    for c in range(CLASSES):
        torch.testing.assert_close(criterion.covariance.covariance(c), expected[c], atol=1e-12, rtol=0)


@pytest.mark.parametrize("bound", ["jensen", "tilted"])
def test_one_hot_distributions_equal_their_labels(bound):
    logits, features, weight = inputs()
    hard = make(bound)(logits, LABELS, features=features, weight=weight, strength=STRENGTH)
    soft_targets = torch.eye(CLASSES, dtype=torch.float64)[LABELS]
    soft = make(bound)(logits, soft_targets, features=features, weight=weight, strength=STRENGTH)
    assert_same(soft, hard, [logits, weight])


def test_label_smoothing_equals_the_smoothed_distribution():
    logits, features, weight = inputs()
    smooth = make("jensen", label_smoothing=0.3)
    loss = smooth(logits, LABELS, features=features, weight=weight, strength=STRENGTH)
    distribution = torch.eye(CLASSES, dtype=torch.float64)[LABELS] * 0.7 + 0.3 / CLASSES
    expected = make("jensen")(logits, distribution, features=features, weight=weight, strength=STRENGTH)
    assert_same(loss, expected, [logits, weight])


@pytest.mark.parametrize("bound", ["jensen", "tilted"])
def test_ignore_index_may_be_one_of_the_classes(bound):
    logits, features, weight = inputs()
    criterion = ISDALoss(CLASSES, DIM, bound=bound, ignore_index=0, dtype=torch.float64, schedule="constant")
    loss = criterion(logits, LABELS, features=features, weight=weight, strength=STRENGTH)
    keep = LABELS != 0
    expected = make(bound)(logits[keep], LABELS[keep], features=features[keep], weight=weight, strength=STRENGTH)
    assert criterion.covariance.count[0] == 0
    assert_same(loss, expected, [logits, weight])


@pytest.mark.parametrize("targets", TARGETS)
def test_the_tilted_loss_is_never_above_the_jensen_loss(targets):
    targets = TARGETS[targets]
    logits, features, weight = inputs()
    rows = {
        bound: make(bound, reduction="none")(logits, targets, features=features, weight=weight, strength=STRENGTH)
        for bound in ("jensen", "tilted")
    }
    assert (rows["tilted"] <= rows["jensen"] + 1e-12).all()
    assert (rows["tilted"] < rows["jensen"] - 1e-3).any()


# -- shares that are none ------------------------------------------------------------------------------------------


def soft_batch(dtype=torch.float32):
    """(logits, targets, features and weight) with proper distributions."""
    features, weight = normal(6, 4, seed=1, dtype=dtype), normal(3, 4, seed=2, dtype=dtype)
    targets = torch.softmax(normal(6, 3, seed=3, dtype=dtype), 1)
    return features @ weight.t(), targets, {"features": features, "weight": weight}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("lambda_0", [0.0, 0.5])
def test_soft_targets_that_are_not_finite_change_nothing(value, lambda_0):
    logits, targets, others = soft_batch()
    criterion = ISDALoss(3, 4, lambda_0, total_steps=5)
    criterion(logits, targets, **others)
    before = state_of(criterion)
    targets[[1, 4], 2] = value
    with pytest.raises(ValueError, match=r"targets given as distributions must be finite, got .* in 2 of 6 rows"):
        criterion(logits, targets, **others)
    assert_same_state(criterion, before)


@pytest.mark.skipif(not pretend_accelerator.AVAILABLE, reason="torch cannot register a device in Python")
def test_on_a_device_soft_targets_that_are_not_finite_stay_out_of_the_statistics():
    logits, targets, others = soft_batch()
    clean = ISDALoss(3, 4, 0.5, schedule="constant")
    clean(logits, targets, **others)
    spoilt = targets.clone()
    spoilt[[1, 4], 2] = float("nan")
    kept = [0, 2, 3, 5]
    clean.covariance.update(others["features"][kept], targets[kept].argmax(1))
    place = pretend_accelerator.on_pretend
    with pretend_accelerator.PretendAccelerator() as device:
        criterion = ISDALoss(3, 4, 0.5, device="pretend", schedule="constant")
        others = {name: place(value) for name, value in others.items()}
        criterion(place(logits), place(targets), **others)
        device.clear()
        criterion(place(logits), place(spoilt), **others)
        assert device.waits == []
        assert torch.equal(criterion.covariance.count.cpu(), clean.covariance.count)
        torch.testing.assert_close(criterion.covariance.scatter.cpu(), clean.covariance.scatter)
        with pytest.raises(ValueError, match="held 2 labels out of range"):
            criterion.eval()


def test_multi_hot_targets_are_warned_of_once():
    logits, _, others = soft_batch()
    criterion = ISDALoss(3, 4, 0.5, schedule="constant")
    targets = torch.tensor([[1.0, 1.0, 0.0]] * 6)
    with pytest.warns(UserWarning, match=r"lie in 2..2 instead of at 1; .* \(multi-hot\)") as caught:
        criterion(logits, targets, **others)
    assert [warning.filename for warning in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        criterion(logits, targets, **others)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_distributions_in_any_precision_are_not_warned_of(dtype):
    logits, _, others = soft_batch()
    shares = torch.softmax(normal(6, 3, seed=4, dtype=torch.float32), 1).to(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ISDALoss(3, 4, 0.5, schedule="constant")(logits, shares, **others)
