"""At strength 0 and in eval mode ISDALoss is nn.CrossEntropyLoss, to the bit, gradients included."""

import pytest
import torch
import torch.nn.functional as F
from loss_oracles import COVARIANCES, assert_same_state, normal, state_of
from torch import nn

from isda import ISDALoss

CLASSES, DIM = 5, 6
CLASS_WEIGHT = torch.tensor([0.3, 2.0, 1.0, 0.7, 1.4])


def at_strength_zero(**settings):
    return ISDALoss(CLASSES, DIM, lambda_0=0.0, **settings).train()


def evaluating(**settings):
    criterion = ISDALoss(CLASSES, DIM, lambda_0=3.0, schedule="constant", **settings)
    features = normal(40, DIM, seed=50, dtype=torch.float32)
    weight = normal(CLASSES, DIM, seed=51, dtype=torch.float32)
    targets = torch.arange(40) % CLASSES
    criterion(features @ weight.t(), targets, features=features, weight=weight)
    return criterion.eval()


MODES = pytest.mark.parametrize("make", [at_strength_zero, evaluating])


def sample(kind):
    """Logits, targets and features of one kind of call."""
    shape = (12,) if kind in ("labels", "ignored", "soft") else (2, 3, 4)
    logits = 3 * normal(shape[0], CLASSES, *shape[1:], seed=1, dtype=torch.float32)
    features = normal(shape[0], DIM, *shape[1:], seed=2, dtype=torch.float32)
    targets = torch.randint(0, CLASSES, shape, generator=torch.Generator().manual_seed(3))
    if "ignored" in kind:
        targets[0] = 255
    if "soft" in kind:
        targets = torch.softmax(normal(*logits.shape, seed=4, dtype=torch.float32), 1)
    return logits, targets, features


@MODES
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("class_weight", [None, CLASS_WEIGHT], ids=["unweighted", "weighted"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("kind", ["labels", "ignored", "soft", "pixels", "ignored pixels", "soft pixels"])
def test_bits_of_cross_entropy(make, kind, reduction, class_weight, smoothing):
    logits, targets, features = sample(kind)
    weight = normal(CLASSES, DIM, seed=5, dtype=torch.float32).requires_grad_()
    ignored = -100 if "soft" in kind else 255
    settings = {"ignore_index": ignored, "reduction": reduction, "label_smoothing": smoothing}
    criterion = make(class_weight=class_weight, **settings)
    plain = nn.CrossEntropyLoss(weight=class_weight, **settings)
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    loss = criterion(ours, targets, features=features, weight=weight)
    expected = plain(theirs, targets)
    assert torch.equal(loss, expected)
    loss.sum().backward()
    expected.sum().backward()
    assert torch.equal(ours.grad, theirs.grad)
    assert weight.grad is None


@MODES
def test_bits_of_cross_entropy_when_all_rows_are_ignored(make):
    logits, _, features = sample("labels")
    targets = torch.full((12,), -100)
    weight = normal(CLASSES, DIM, seed=5, dtype=torch.float32)
    loss = make()(logits, targets, features=features, weight=weight)
    assert torch.equal(loss.isnan(), nn.CrossEntropyLoss()(logits, targets).isnan())
    total = make(reduction="sum")(logits, targets, features=features, weight=weight)
    assert torch.equal(total, nn.CrossEntropyLoss(reduction="sum")(logits, targets))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@MODES
def test_bits_of_cross_entropy_in_every_dtype(make, dtype):
    logits, targets, features = (t.to(dtype) if t.is_floating_point() else t for t in sample("labels"))
    weight = normal(CLASSES, DIM, seed=5).to(dtype)
    loss = make(class_weight=CLASS_WEIGHT)(logits, targets, features=features, weight=weight)
    expected = nn.CrossEntropyLoss(weight=CLASS_WEIGHT.to(dtype))(logits, targets)
    assert loss.dtype == dtype
    assert torch.equal(loss, expected)


@pytest.mark.parametrize("align_corners", [False, True])
@MODES
def test_labels_finer_than_logits_get_the_ordinary_baseline(make, align_corners):
    logits, _, features = sample("pixels")
    targets = torch.randint(0, CLASSES, (2, 9, 13), generator=torch.Generator().manual_seed(3))
    weight = normal(CLASSES, DIM, seed=5, dtype=torch.float32)
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    loss = make(align_corners=align_corners)(ours, targets, features=features, weight=weight)
    upsampled = F.interpolate(theirs, size=(9, 13), mode="bilinear", align_corners=align_corners)
    expected = nn.CrossEntropyLoss()(upsampled, targets)
    assert torch.equal(loss, expected)
    loss.backward()
    expected.backward()
    assert torch.equal(ours.grad, theirs.grad)


@MODES
def test_distributions_may_come_beside_any_ignore_index(make):
    logits, targets, features = sample("soft")
    weight = normal(CLASSES, DIM, seed=5, dtype=torch.float32)
    loss = make(ignore_index=255)(logits, targets, features=features, weight=weight)
    assert torch.equal(loss, nn.CrossEntropyLoss()(logits, targets))


def test_explicit_strength_zero_is_cross_entropy_too():
    logits, targets, features = sample("labels")
    criterion = ISDALoss(CLASSES, DIM, lambda_0=2.0, schedule="constant")
    weight = normal(CLASSES, DIM, seed=5, dtype=torch.float32)
    loss = criterion(logits, targets, features=features, weight=weight, strength=0.0)
    assert torch.equal(loss, nn.CrossEntropyLoss()(logits, targets))
    assert criterion.covariance.count.sum() == 12


def test_without_features_and_weight_lambda_0_zero_replaces_cross_entropy():
    logits, targets, _ = sample("labels")
    assert torch.equal(at_strength_zero()(logits, targets), nn.CrossEntropyLoss()(logits, targets))


def test_lambda_0_zero_still_learns_the_statistics():
    logits, targets, features = sample("labels")
    criterion = at_strength_zero()
    criterion(logits, targets, features=features, weight=normal(CLASSES, DIM, seed=5, dtype=torch.float32))
    assert torch.equal(criterion.covariance.count, torch.bincount(targets, minlength=CLASSES))


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("bound", ["jensen", "tilted"])
def test_eval_changes_no_state(covariance, bound):
    logits, targets, features = sample("labels")
    weight = normal(CLASSES, DIM, seed=5, dtype=torch.float32)
    criterion = ISDALoss(CLASSES, DIM, 1.0, 10, covariance=covariance, bound=bound)
    for _ in range(3):
        criterion(logits, targets, features=features, weight=weight)
    criterion.eval()
    before = state_of(criterion)
    criterion(logits, targets, features=2 * features, weight=weight)
    criterion(logits, targets)
    criterion(logits, targets, features=features, weight=weight, strength=0.7)
    assert_same_state(criterion, before)
    assert criterion.strength == pytest.approx(0.3)
