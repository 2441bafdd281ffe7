"""Bad input gets a ValueError that names the argument, and leaves the state as it was."""

import pytest
import torch
from loss_oracles import COVARIANCES, assert_same_state, normal, state_of

from isda import ISDABCELoss, ISDALoss
from isda.covariance import DiagonalCovariance, FullCovariance

CLASSES, DIM, ROWS = 3, 4, 6
NAN, INF = float("nan"), float("inf")


def made(**settings):
    """A criterion in the middle of a run."""
    criterion = ISDALoss(CLASSES, DIM, 1.0, total_steps=10, **settings)
    for _ in range(2):
        criterion(**good())
    return criterion


def good(**changes):
    features = normal(ROWS, DIM, seed=1, dtype=torch.float32)
    weight = normal(CLASSES, DIM, seed=2, dtype=torch.float32)
    arguments = {
        "logits": features @ weight.t(),
        "targets": torch.arange(ROWS) % CLASSES,
        "features": features,
        "weight": weight,
    }
    return arguments | changes


def good_pixels(**changes):
    arguments = {
        "logits": normal(2, CLASSES, 3, 3, seed=1, dtype=torch.float32),
        "targets": torch.zeros(2, 3, 3, dtype=torch.int64),
        "features": normal(2, DIM, 3, 3, seed=2, dtype=torch.float32),
        "weight": normal(CLASSES, DIM, seed=3, dtype=torch.float32),
    }
    return arguments | changes


def spoilt(value, rows):
    features = normal(ROWS, DIM, seed=1, dtype=torch.float32)
    features[rows, 1] = value
    return features


def labels(*values):
    return torch.tensor([*values, *[0] * (ROWS - len(values))])


BAD_CALLS = {
    "logits of a vector": (good(logits=torch.zeros(CLASSES)), "logits must have shape"),
    "logits of another number of classes": (good(logits=torch.zeros(ROWS, 5)), r"logits must have shape \(N, 3, ...\)"),
    "integer logits": (good(logits=torch.zeros(ROWS, CLASSES, dtype=torch.int64)), "logits must be floating point"),
    "no samples": (
        good(logits=torch.zeros(0, CLASSES), targets=torch.zeros(0, dtype=torch.int64), features=torch.zeros(0, DIM)),
        "logits must hold at least one sample, got an empty batch",
    ),
    "too few labels": (good(targets=torch.zeros(4, dtype=torch.int64)), r"targets must have shape \(6,\)"),
    "labels of another rank": (good(targets=torch.zeros(ROWS, 1, dtype=torch.int64)), "targets must have shape"),
    "boolean labels": (good(targets=torch.zeros(ROWS, dtype=torch.bool)), "targets must hold integer class indices"),
    "distributions of another shape": (good(targets=torch.ones(ROWS, 5)), "targets given as distributions"),
    "a label too high": (
        good(targets=labels(0, 3, 7)),
        r"targets must lie in 0..2 or ignore_index=-100, got 3 \(2 of 6 labels",
    ),
    "a negative label": (good(targets=labels(-1)), r"targets must lie in 0..2 .* got -1 \(1 of 6 labels"),
    "too few features": (good(features=torch.zeros(4, DIM)), r"features must have shape \(6, 4\)"),
    "features of another dimension": (good(features=torch.zeros(ROWS, 7)), r"features must have shape \(6, 4\)"),
    "features of another rank": (good(features=torch.zeros(ROWS, DIM, 2, 2)), "features must have shape"),
    "integer features": (
        good(features=torch.zeros(ROWS, DIM, dtype=torch.int64)),
        "features must be floating point",
    ),
    "one row with NaN": (good(features=spoilt(NAN, [2])), "features must be finite, got NaN or infinity in 1 of 6"),
    "rows with infinity": (good(features=spoilt(INF, [0, 3, 4])), "NaN or infinity in 3 of 6 rows"),
    "infinities that cancel": (good(features=spoilt(torch.tensor([INF, -INF]), [1, 2])), "in 2 of 6 rows"),
    "weight of another number of classes": (good(weight=torch.zeros(5, DIM)), r"weight must have shape \(3, 4\)"),
    "weight of a convolution over pixels": (good(weight=torch.zeros(CLASSES, 1, 2, 2)), "weight must have shape"),
    "weight transposed": (good(weight=torch.zeros(DIM, CLASSES)), r"weight must have shape \(3, 4\), got \(4, 3\)"),
    "weight of a wide convolution": (good(weight=torch.zeros(CLASSES, DIM, 3, 3)), "weight must have shape"),
    "no features": (good(features=None), "features must be given"),
    "no weight": (good(weight=None), "weight must be given"),
    "neither": (good(features=None, weight=None), "features and weight must be given"),
    "a negative strength": (good(strength=-0.1), "strength must be a finite number >= 0, got -0.1"),
    "a strength of NaN": (good(strength=NAN), "strength must be a finite number >= 0, got nan"),
    "an infinite strength": (good(strength=INF), "strength must be a finite number >= 0, got inf"),
    "pixels with labels of rows": (good_pixels(targets=torch.zeros(2, dtype=torch.int64)), "targets must have shape"),
    "pixels with features of rows": (good_pixels(features=torch.zeros(2, DIM)), "features must have shape"),
    "pixels with labels of another batch": (
        good_pixels(targets=torch.zeros(3, 3, 3, dtype=torch.int64)),
        "targets must have shape",
    ),
    "pixels without labels": (good_pixels(targets=torch.zeros(2, 0, 3, dtype=torch.int64)), "targets must hold"),
    "pixels without features": (good_pixels(features=torch.zeros(2, DIM, 0, 3)), "features must hold"),
    "pixels with a label too high": (
        good_pixels(targets=torch.full((2, 6, 6), 255)),
        "targets must lie in 0..2 .* got 255",
    ),
    "distributions finer than features": (
        good_pixels(targets=torch.ones(2, CLASSES, 3, 3), features=torch.zeros(2, DIM, 2, 2)),
        "features must have the spatial size of targets given as distributions",
    ),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_a_bad_call_names_the_argument_and_changes_nothing(case):
    arguments, message = BAD_CALLS[case]
    criterion = made()
    before = state_of(criterion)
    with pytest.raises(ValueError, match=message):
        criterion(**arguments)
    assert_same_state(criterion, before)


@pytest.mark.parametrize("bound", ["jensen", "tilted"])
@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("case", ["a label too high", "rows with infinity", "weight transposed", "no samples"])
def test_every_covariance_refuses_bad_values_before_it_learns(case, covariance, bound):
    arguments, message = BAD_CALLS[case]
    criterion = made(covariance=covariance, bound=bound)
    before = state_of(criterion)
    with pytest.raises(ValueError, match=message):
        criterion(**arguments)
    assert_same_state(criterion, before)


def test_a_bad_call_does_not_spoil_the_next_good_one():
    disturbed, undisturbed = made(), made()
    for arguments, _ in BAD_CALLS.values():
        with pytest.raises(ValueError):
            disturbed(**arguments)
    assert torch.equal(disturbed(**good()), undisturbed(**good()))


def test_a_label_beyond_ignore_index_is_still_refused():
    criterion = made(ignore_index=255)
    with pytest.raises(ValueError, match=r"targets must lie in 0..2 or ignore_index=255, got -100 \(1 of 6"):
        criterion(**good(targets=labels(255, -100)))


def test_lambda_0_zero_checks_its_input_too():
    criterion = ISDALoss(CLASSES, DIM, 0.0)
    before = state_of(criterion)
    with pytest.raises(ValueError, match="features must be finite"):
        criterion(**good(features=spoilt(NAN, [0])))
    with pytest.raises(ValueError, match="targets must lie in"):
        criterion(**good(targets=labels(9)))
    assert_same_state(criterion, before)


def test_lambda_0_zero_does_not_ignore_an_explicit_strength():
    with pytest.raises(ValueError, match="features and weight must be given"):
        ISDALoss(CLASSES, DIM, 0.0)(**good(features=None, weight=None, strength=0.5))


def test_validate_false_takes_features_as_they_are():
    criterion = ISDALoss(CLASSES, DIM, 1.0, validate=False, schedule="constant")
    loss = criterion(**good(features=spoilt(NAN, [0])))
    assert loss.isnan()
    assert criterion.covariance.count.sum() == ROWS


def test_validate_false_does_not_look_at_labels(monkeypatch):
    def called(*arguments):
        raise AssertionError("labels were checked")

    monkeypatch.setattr("isda._utils.checks.label_error", called)
    monkeypatch.setattr("isda._utils.checks.finite_error", called)
    loss = ISDALoss(CLASSES, DIM, 1.0, validate=False, schedule="constant")(**good(targets=labels(-100)))
    assert loss.isfinite()
    with pytest.raises(AssertionError, match="labels were checked"):
        ISDALoss(CLASSES, DIM, 1.0, schedule="constant")(**good(targets=labels(9)))


# -- the other methods ---------------------------------------------------------------------------------------------

BAD_CONSISTENCY = {
    "logits of another number of classes": ({"logits": torch.zeros(2, 5)}, "logits must have shape"),
    "no samples": ({"logits": torch.zeros(0, CLASSES)}, "logits must hold at least one sample"),
    "no pixels": ({"logits": torch.zeros(2, CLASSES, 0, 3)}, "logits must hold at least one sample"),
    "integer logits": ({"logits": torch.zeros(2, CLASSES, dtype=torch.int64)}, "logits must be floating point"),
    "weight of another shape": ({"weight": torch.zeros(DIM, CLASSES)}, "weight must have shape"),
    "no weight": ({"weight": None}, "weight must be given"),
    "a negative strength": ({"strength": -1.0}, "strength must be a finite number >= 0"),
    "a strength of NaN": ({"strength": NAN}, "strength must be a finite number >= 0"),
    "a misspelt bound": (
        {"bound": "jenson"},
        "bound must be one of jensen, tilted, got 'jenson'; did you mean 'jensen'",
    ),
}


@pytest.mark.parametrize("case", BAD_CONSISTENCY)
def test_consistency_refuses_bad_input(case):
    changes, message = BAD_CONSISTENCY[case]
    arguments = {"logits": torch.zeros(2, CLASSES), "weight": torch.zeros(CLASSES, DIM)} | changes
    criterion = made()
    before = state_of(criterion)
    with pytest.raises(ValueError, match=message):
        criterion.consistency(**arguments)
    assert_same_state(criterion, before)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"logits": torch.zeros(ROWS, 5)}, "logits must have shape"),
        ({"targets": labels(3)}, "targets must lie in"),
        ({"targets": torch.zeros(2, dtype=torch.int64)}, "targets must have shape"),
        ({"weight": torch.zeros(DIM, CLASSES)}, "weight must have shape"),
        ({"weight": None}, "weight must be given"),
        ({"strength": NAN}, "strength must be a finite number >= 0"),
    ],
)
def test_augmented_logits_refuses_bad_input(changes, message):
    arguments = {key: value for key, value in good().items() if key != "features"} | changes
    criterion = made()
    before = state_of(criterion)
    with pytest.raises(ValueError, match=message):
        criterion.augmented_logits(**arguments)
    assert_same_state(criterion, before)


# -- the constructor -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_classes": 0}, "num_classes must be a positive integer, got 0"),
        ({"num_classes": 2.5}, "num_classes must be a positive integer, got 2.5"),
        ({"feature_dim": -4}, "feature_dim must be a positive integer, got -4"),
        ({"lambda_0": -0.5}, "lambda_0 must be a finite number >= 0, got -0.5"),
        ({"lambda_0": NAN}, "lambda_0 must be a finite number >= 0, got nan"),
        ({"lambda_0": INF}, "lambda_0 must be a finite number >= 0, got inf"),
        ({"lambda_0": "0.5"}, "lambda_0 must be a finite number >= 0 or 'auto', got '0.5'"),
        ({"lambda_0": torch.nn.Linear(4, 3)}, "lambda_0 must be a finite number >= 0 or 'auto', got Linear"),
        ({"total_steps": 0}, "total_steps must be a positive integer or None, got 0"),
        ({"total_steps": 1.5}, "total_steps must be a positive integer or None, got 1.5"),
        ({"covariance": "digonal"}, "covariance must be one of full, .* got 'digonal'; did you mean 'diagonal'"),
        ({"covariance": "low-rank"}, "did you mean 'low_rank'"),
        ({"covariance": 5}, "covariance must be a name or a CovarianceModel, got int"),
        ({"covariance": FullCovariance(5, DIM)}, "covariance must be for 3 classes x 4 features, got 5 classes x 4"),
        ({"covariance": DiagonalCovariance(CLASSES, DIM), "decay": 0.5}, "decay cannot be set here"),
        ({"bound": "tilt"}, "bound must be one of jensen, tilted, got 'tilt'; did you mean 'tilted'"),
        ({"reduction": "avg"}, "reduction must be one of mean, sum, none, got 'avg'"),
        ({"reduction": "men"}, "did you mean 'mean'"),
        ({"label_smoothing": 1.5}, "label_smoothing must lie in 0..1, got 1.5"),
        ({"label_smoothing": NAN}, "label_smoothing must lie in 0..1, got nan"),
        ({"class_weight": torch.ones(4)}, r"class_weight must have shape \(3,\), got \(4,\)"),
        ({"class_weight": [1.0, 2.0, 0.5]}, r"class_weight must be a tensor of shape \(3,\), got list"),
        ({"tilt_steps": -1}, "tilt_steps must be an integer >= 0, got -1"),
        ({"covariance": "low_rank", "rank": 0}, "rank must be a positive integer, got 0"),
        ({"covariance": "learned", "rank": 9}, r"rank must be an integer in 1..4, got 9"),
        ({"decay": 1.5}, "decay must lie strictly between 0 and 1"),
    ],
)
def test_a_bad_constructor_argument_is_named(settings, message):
    with pytest.raises(ValueError, match=message):
        ISDALoss(**({"num_classes": CLASSES, "feature_dim": DIM} | settings))


def test_an_unknown_setting_is_refused():
    with pytest.raises(ValueError, match=r"^ISDALoss has no setting 'label_smothing' .*did you mean 'label_smoothing'"):
        ISDALoss(CLASSES, DIM, label_smothing=0.1, schedule="constant")


@pytest.mark.parametrize("value", [0, -2, 1.5])
def test_advance_every_must_be_a_positive_integer(value):
    criterion = made()
    with pytest.raises(ValueError, match="advance_every must be a positive integer"):
        criterion.advance_every = value
    assert criterion.advance_every == 1


@pytest.mark.parametrize(
    ("entry", "value", "message"),
    [
        ("schedule.step", torch.tensor(-1), "must be at least 0, got -1"),
        ("schedule.step", torch.tensor(float("nan")), "must be finite"),
        ("schedule.microstep", torch.tensor(-2), "must be at least -1, got -2"),
        ("covariance.count", torch.tensor([1, -1, 1]), "must be at least 0, got -1"),
        ("covariance.offset", torch.full((CLASSES, DIM), float("inf")), "must be finite"),
        ("class_weight", torch.tensor([1.0, -1.0, 1.0]), "must be at least 0, got -1"),
    ],
)
def test_a_state_with_impossible_values_is_refused_before_anything_changes(entry, value, message):
    criterion = made(class_weight=torch.ones(CLASSES))
    before = state_of(criterion)
    state = ISDALoss(CLASSES, DIM, 1.0, total_steps=10, class_weight=torch.ones(CLASSES)).state_dict()
    with pytest.raises(ValueError, match=rf"{entry} in the state {message}.*; statistics were not changed"):
        criterion.load_state_dict(state | {entry: value})
    assert_same_state(criterion, before)


@pytest.mark.parametrize("value", [1e300, 1e30, 2e19])
def test_a_strength_that_overflows_is_refused_at_once(value):
    message = r"must be at most 1.8e\+19, or lambda times a variance overflows float32, got "
    with pytest.raises(ValueError, match="lambda_0 " + message):
        ISDALoss(CLASSES, DIM, value, schedule="constant")
    criterion = made()
    before = state_of(criterion)
    with pytest.raises(ValueError, match="strength " + message):
        criterion(**good(), strength=value)
    with pytest.raises(ValueError, match="strength " + message):
        criterion.covariance.sample(torch.tensor([0]), strength=value)
    assert_same_state(criterion, before)
    assert ISDALoss(CLASSES, DIM, 1e19, schedule="constant").strength == 1e19


@pytest.mark.parametrize("kind", [ISDALoss, ISDABCELoss])
@pytest.mark.parametrize("bad", [-0.5, float("inf"), float("nan")])
def test_weights_that_are_negative_or_not_finite_are_refused(kind, bad):
    weights = torch.tensor([1.0, bad, 0.0])
    message = rf"class_weight must hold finite numbers >= 0, got {bad:g} \(1 of 3 are not\)"
    with pytest.raises(ValueError, match=message):
        kind(CLASSES, DIM, class_weight=weights)
    if kind is ISDABCELoss:
        with pytest.raises(ValueError, match="pos_weight must hold finite numbers >= 0"):
            kind(CLASSES, DIM, pos_weight=weights)
    else:
        with pytest.raises(ValueError, match="class_weight must be above 0 for at least one class"):
            kind(CLASSES, DIM, class_weight=torch.zeros(CLASSES))


def test_a_state_dict_of_another_shape_is_refused():
    with pytest.raises(RuntimeError, match="size mismatch"):
        made().load_state_dict(ISDALoss(CLASSES, DIM + 1, schedule="constant").state_dict())


@pytest.mark.parametrize(
    ("name", "meant"), [("lamda_0", "lambda_0"), ("weight", "class_weight"), ("decai", "decay"), ("Rank", None)]
)
def test_an_unknown_setting_is_the_criterions_to_refuse(name, meant):
    hint = "" if meant is None else f"; did you mean '{meant}'\\?"
    message = rf"^ISDALoss has no setting '{name}' with covariance='full'{hint}$"
    with pytest.raises(ValueError, match=message):
        ISDALoss(3, 4, covariance="full", **{name: 1})
    with pytest.raises(ValueError, match=rf"^ISDALoss has no setting '{name}' with covariance='auto'{hint}"):
        ISDALoss.attach(torch.nn.Linear(4, 3), **{name: 1})


def test_every_row_is_known_to_count_unless_a_label_says_otherwise():
    criterion = ISDALoss(CLASSES, DIM, schedule="constant")
    arguments = good()
    order = [arguments[name] for name in ("logits", "targets", "features", "weight")]
    assert criterion._check_inputs(*order).counts is None
    order[1] = labels(2, -100, 1)
    assert criterion._check_inputs(*order).counts.tolist() == [True, False, *[True] * (ROWS - 2)]
    criterion.ignore_index = 0  # a class that does not count
    order[1] = torch.arange(ROWS) % CLASSES
    assert criterion._check_inputs(*order).counts.tolist() == [c != 0 for c in order[1].tolist()]


def test_one_class_alone_may_have_rows_that_do_not_count():
    features, weight = normal(4, DIM, seed=1), normal(1, DIM, seed=2)
    criterion = ISDALoss(1, DIM, lambda_0=1.0, schedule="constant")
    loss = criterion(features @ weight.t(), torch.tensor([0, -100, 0, 0]), features=features, weight=weight)
    assert loss == 0
    assert criterion.covariance.count.tolist() == [3]


class Announcing(FullCovariance):
    """Counts how often it told the other processes that there will be no update from this one."""

    failures = 0

    def report_failure(self, error=None):
        self.failures += 1


def test_others_are_told_of_bad_input_where_they_wait_for_an_update_and_only_there():
    model = torch.nn.Linear(DIM, CLASSES)
    statistics = Announcing(CLASSES, DIM)
    criterion = ISDALoss.attach(model, covariance=statistics, lambda_0=1.0, schedule="constant")
    rows = normal(ROWS, DIM, seed=1, dtype=torch.float32)
    with pytest.raises(ValueError, match="targets must"):
        criterion(model(rows), torch.zeros(2, dtype=torch.int64))
    assert statistics.failures == 1
    logits = model(rows)
    criterion(logits, torch.arange(ROWS) % CLASSES)
    with pytest.raises(ValueError, match="targets must"):
        criterion(logits, torch.zeros(2, dtype=torch.int64))  # the second call on a pass updates nothing
    assert statistics.failures == 1
