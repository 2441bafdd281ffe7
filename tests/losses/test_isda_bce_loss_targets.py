"""At strength 0 and in eval mode ISDABCELoss is nn.BCEWithLogitsLoss, to the bit; missing labels; what is refused."""

import pytest
import torch
import torch.nn.functional as F
from label_cases import BOUNDS, LABEL_WEIGHTS, NAN, PRESENT, A, K, N, criterion_for, logits_of, sample
from loss_oracles import assert_same_state, state_of
from torch import nn

from isda import ISDABCELoss
from isda.covariance import FullCovariance


def at_strength_zero(**settings):
    return ISDABCELoss(K, A, lambda_0=0.0, **settings)


def evaluating(**settings):
    criterion = ISDABCELoss(K, A, lambda_0=3.0, schedule="constant", **settings)
    features, weight, targets = sample(20, torch.float32)
    criterion(logits_of(features, weight), targets, features=features, weight=weight)
    return criterion.eval()


@pytest.mark.parametrize("make", [at_strength_zero, evaluating])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("pixels", [(), (2, 3)])
def test_bits_of_binary_cross_entropy(make, reduction, weighted, pixels):
    features, weight, targets = sample(3, torch.float32, pixels)
    weights = {"pos_weight": PRESENT, "class_weight": LABEL_WEIGHTS} if weighted else {}
    criterion = make(reduction=reduction, **weights)
    along = (-1, *[1] * len(pixels))
    theirs_settings = {"pos_weight": PRESENT.view(along), "weight": LABEL_WEIGHTS.view(along)} if weighted else {}
    ours, theirs = (logits_of(features, weight).requires_grad_() for _ in range(2))
    loss = criterion(ours, targets, features=features, weight=weight)
    expected = nn.BCEWithLogitsLoss(reduction=reduction, **theirs_settings)(theirs, targets)
    assert torch.equal(loss, expected)
    loss.sum().backward()
    expected.sum().backward()
    assert torch.equal(ours.grad, theirs.grad)


def test_at_lambda_0_zero_features_need_not_be_given():
    features, weight, targets = sample(3, torch.float32)
    logits = logits_of(features, weight)
    assert torch.equal(at_strength_zero()(logits, targets), F.binary_cross_entropy_with_logits(logits, targets))


def test_eval_mode_changes_no_state():
    criterion = evaluating()
    before = state_of(criterion)
    features, weight, targets = sample(5, torch.float32)
    criterion(logits_of(features, weight), targets)
    assert_same_state(criterion, before)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float32])
def test_labels_of_any_type(dtype):
    features, weight, targets = sample()
    logits = logits_of(features, weight)
    losses = [
        criterion_for()(logits, labels, features=features, weight=weight) for labels in (targets, targets.to(dtype))
    ]
    assert torch.equal(*losses)
    plain = F.binary_cross_entropy_with_logits(
        logits, targets.to(torch.float32 if dtype.is_floating_point else logits.dtype)
    )
    assert torch.equal(criterion_for().eval()(logits, targets.to(dtype)), plain)


# -- missing labels ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", [-1.0, NAN, -100.0])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("mode", [*BOUNDS, "eval"])
def test_missing_labels_cost_nothing_and_their_samples_feed_the_statistics(mode, reduction, missing):
    bound = "jensen" if mode == "eval" else mode
    features, weight, targets = sample()
    logits = logits_of(features, weight).requires_grad_()
    everything = criterion_for(bound=bound, reduction="none").train(mode != "eval")
    losses = everything(logits, targets, features=features, weight=weight)
    absent = torch.zeros(N, K, dtype=torch.bool)
    absent[0], absent[2, 1] = True, True
    criterion = criterion_for(bound=bound, reduction=reduction, ignore_value=missing).train(mode != "eval")
    loss = criterion(logits, targets.masked_fill(absent, missing), features=features, weight=weight)
    left = losses.masked_fill(absent, 0)
    expected = {"none": left, "sum": left.sum(), "mean": left.sum() / (N * K - 4)}[reduction]
    torch.testing.assert_close(loss, expected)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert (gradient[absent] == 0).all()
    assert (gradient[~absent] != 0).all()
    assert torch.equal(criterion.covariance.count, everything.covariance.count)


def test_integer_labels_can_be_missing():
    features, weight, targets = sample()
    targets[1, 1] = -1
    losses = [
        criterion_for(ignore_value=-1)(logits_of(features, weight), labels, features=features, weight=weight)
        for labels in (targets, targets.long())
    ]
    assert torch.equal(*losses)


@pytest.mark.parametrize("bound", BOUNDS)
def test_a_batch_of_missing_labels_costs_nothing(bound):
    features, weight, _ = sample()
    logits = logits_of(features, weight).requires_grad_()
    criterion = criterion_for(bound=bound, ignore_value=NAN)
    loss = criterion(logits, torch.full((N, K), NAN, dtype=torch.float64), features=features, weight=weight)
    loss.backward()
    assert loss == 0
    assert (logits.grad == 0).all()


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"targets": torch.zeros(N)},
            r"targets must have the shape of logits, \(7, 3\), one label for each, got \(7,\)",
        ),
        ({"targets": torch.full((N, K), 2.0)}, r"targets must lie in 0..1, got 2 \(21 of 21 labels are out of range\)"),
        ({"targets": torch.full((N, K), NAN)}, r"targets must lie in 0..1, got nan \(21 of 21"),
        ({"logits": torch.zeros(N, K + 1)}, r"logits must have shape \(N, 3, ...\), got \(7, 4\)"),
        ({"weight": torch.zeros(K, A + 1)}, r"weight must have shape \(3, 4\), got \(3, 5\)"),
        ({"features": torch.zeros(N, A + 1)}, r"features must have shape \(7, 4\) for logits \(7, 3\), got \(7, 5\)"),
        ({"features": torch.full((N, A), NAN)}, "features must be finite, got NaN or infinity in 7 of 7 rows"),
    ],
)
def test_bad_input_is_named_before_anything_changes(change, message):
    criterion = ISDABCELoss(K, A, total_steps=5)
    features, weight, targets = sample(dtype=torch.float32)
    call = {"logits": logits_of(features, weight), "targets": targets, "features": features, "weight": weight}
    criterion(**call)
    before = state_of(criterion)
    with pytest.raises(ValueError, match=message):
        criterion(**{**call, **change})
    assert_same_state(criterion, before)


def test_a_label_out_of_range_beside_missing_ones_is_named():
    features, weight, targets = sample()
    targets[0, 0], targets[1, 1] = -1, -2
    message = r"targets must lie in 0..1 or be ignore_value=-1, got -2 \(1 of 21 labels are out of range\)"
    with pytest.raises(ValueError, match=message):
        criterion_for(ignore_value=-1)(logits_of(features, weight), targets, features=features, weight=weight)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bound": "tilted"}, "bound must be one of jensen, exact, got 'tilted'"),
        ({"covariance": "block"}, "covariance must be one of full, .*, got 'block'"),
        ({"reduction": "max"}, "reduction must be one of mean, sum, none, got 'max'"),
        ({"pos_weight": torch.ones(2)}, r"pos_weight must have shape \(3,\), got \(2,\)"),
        ({"class_weight": torch.ones(3, 1)}, r"class_weight must have shape \(3,\), got \(3, 1\)"),
        (
            {"ignore_index": -1},
            "no setting 'ignore_index' with covariance='auto'; did you mean 'ignore_value'",
        ),
        ({"label_smoothing": 0.1}, "ISDABCELoss has no setting 'label_smoothing' with covariance='auto'"),
        ({"rnak": 3, "covariance": "low_rank"}, "ISDABCELoss has no setting 'rnak' .*; did you mean 'rank'"),
        ({"covariance": FullCovariance(K, A)}, "covariance must be for 1 classes x 4 features, got 3 classes x 4"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        ISDABCELoss(K, A, **settings)


@pytest.mark.parametrize("labels", [0, 1.5])
def test_a_number_of_labels_that_is_none_is_named(labels):
    with pytest.raises(ValueError, match=f"num_labels must be a positive integer, got {labels}"):
        ISDABCELoss(labels, A, schedule="constant")


def test_a_covariance_made_elsewhere_is_used():
    model = FullCovariance(1, A, dtype=torch.float64, decay=0.9)
    features, weight, targets = sample()
    criterion_for(covariance=model)(logits_of(features, weight), targets, features=features, weight=weight)
    assert model.count.tolist() == [N]
