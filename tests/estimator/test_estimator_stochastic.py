"""What is not convex: hidden layers and unlabelled rows, stopped early, continued, fed in parts."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits

from isda import ISDAClassifier


@pytest.fixture(scope="module")
def digits():
    return load_digits(return_X_y=True)


@pytest.fixture(scope="module")
def few(digits):
    """Five labels per digit among 400 rows."""
    labels, rng = np.full(400, -1), np.random.default_rng(0)
    for digit in range(10):
        labels[rng.choice(np.flatnonzero(digits[1][:400] == digit), 5, replace=False)] = digit
    return digits[0][:400], labels


def test_unlabelled_rows_move_the_model(few):
    # The labelled rows alone: the only difference is the consistency term.
    without = ISDAClassifier(0.5, C=0.1, unlabelled=-1).fit(*few)
    with_them = ISDAClassifier(0.5, C=0.1, unlabelled=-1, consistency=1.0, epochs=5, random_state=0).fit(*few)
    assert not hasattr(without, "network_")
    assert without.classes_.tolist() == with_them.classes_.tolist() == list(range(10))
    assert np.abs(without.coef_ - with_them.coef_).max() > 1e-3
    assert with_them.coef_.shape == (10, 64)


def test_unlabelled_rows_take_no_part_by_default(few):
    X, labels = few
    known = labels >= 0
    marked, without = ISDAClassifier(0.5, C=0.1, unlabelled=-1), ISDAClassifier(0.5, C=0.1)
    np.testing.assert_array_equal(marked.fit(X, labels).coef_, without.fit(X[known], labels[known]).coef_)
    streams = [ISDAClassifier(0.5, C=0.1, unlabelled=-1, random_state=0) for _ in range(2)]
    streams[0].partial_fit(X, labels, classes=range(10))
    streams[1].partial_fit(X[known], labels[known], classes=range(10))
    np.testing.assert_array_equal(streams[0].coef_, streams[1].coef_)


def test_rows_with_another_mark_are_unlabelled_too(few, digits):
    X, labels = few
    named = np.where(labels < 0, "?", labels.astype(str))
    model = ISDAClassifier(0.5, C=0.1, epochs=5, unlabelled="?", consistency=1.0, random_state=0).fit(X, named)
    assert "?" not in model.classes_
    assert (model.predict(digits[0][400:]) == digits[1][400:].astype(str)).mean() > 0.7


def test_training_stops_when_held_out_rows_say_so_and_keeps_the_best(digits):
    X, y = digits[0][:300], digits[1][:300]
    model = ISDAClassifier(0.5, C=1.0, hidden=(16,), patience=3, learning_rate=0.05, random_state=0).fit(X, y)
    curve = model.validation_curve_
    assert len(curve) == len(model.loss_curve_) + 1 < 201
    assert len(curve) - 1 - int(np.argmax(curve)) == 3
    everything = ISDAClassifier(0.5, C=1.0, hidden=(16,), epochs=4, validation_fraction=0, random_state=0).fit(X, y)
    assert len(everything.loss_curve_) == 4
    assert everything.validation_curve_ == []


def test_auto_chooses_a_strength_by_held_out_rows(digits):
    model = ISDAClassifier(hidden=(8,), epochs=6, random_state=0).fit(digits[0][:200], digits[1][:200])
    results = model.cv_results_
    assert results["param_lambda_0"].tolist() == [0.0, 0.5, 2.0]
    assert model.lambda_0_ == results["param_lambda_0"][np.argmax(results["mean_test_score"])]


def test_hidden_layers_learn_what_a_line_cannot():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (400, 2))
    y = (X[:, 0] * X[:, 1] > 0).astype(int)
    assert ISDAClassifier(0.1, C=1.0).fit(X, y).score(X, y) < 0.7
    network = ISDAClassifier(0.1, C=10.0, hidden=(32,), random_state=0).fit(X, y)
    assert network.score(X, y) > 0.9
    assert not hasattr(network, "coef_")


@pytest.mark.parametrize("name", ["within", "shrunk", "full", "diagonal", "shared", "identity"])
@pytest.mark.parametrize("bound", ["jensen", "tilted"])
def test_every_covariance_and_bound_trains(few, name, bound):
    trained = {"unlabelled": -1, "consistency": 1.0, "epochs": 1, "random_state": 0}
    model = ISDAClassifier(0.2, C=0.1, covariance=name, bound=bound, **trained).fit(*few)
    assert np.isfinite(model.loss_curve_).all()
    assert np.isfinite(model.coef_).all()


def test_same_seed_same_model(few):
    X, labels = few
    model = ISDAClassifier(0.5, C=0.1, unlabelled=-1, consistency=1.0, epochs=3, random_state=3)
    first, second = (clone(model).fit(X, labels) for _ in range(2))
    np.testing.assert_array_equal(first.predict_proba(X), second.predict_proba(X))


def test_warm_start_goes_on_where_the_last_fit_ended(digits):
    X, y = digits[0][:200], digits[1][:200]
    settings = {"C": 1.0, "hidden": (16,), "epochs": 5, "validation_fraction": 0, "random_state": 0}
    cold = ISDAClassifier(0.5, **settings).fit(X, y)
    warm = ISDAClassifier(0.5, **settings, warm_start=True).fit(X, y).fit(X, y)
    assert warm.loss_curve_[0] < cold.loss_curve_[-1] < cold.loss_curve_[0]


@pytest.mark.parametrize("hidden", [(), (16,)])
def test_partial_fit_learns_from_parts_and_survives_a_pickle(digits, hidden):
    X, y = digits
    model = ISDAClassifier(0.5, C=10.0, hidden=hidden, random_state=0)
    for part in np.arange(600).reshape(6, 100):
        model.partial_fit(X[part], y[part], classes=range(10))
    early = model.score(X[600:], y[600:])
    model = pickle.loads(pickle.dumps(model))
    for _ in range(3):
        for part in np.arange(600).reshape(6, 100):
            model.partial_fit(X[part], y[part])
    assert model.n_iter_[0] == 24 == len(model.loss_curve_)
    assert model.score(X[600:], y[600:]) > max(early, 0.85)
    with pytest.raises(ValueError, match=r"y must hold labels of the classes .* got \[11\]"):
        model.partial_fit(X[:10], np.full(10, 11))
    fitted = ISDAClassifier(0.5, C=0.1, learning_rate=1e-4).fit(X[:300], y[:300])
    before = fitted.coef_
    fitted.partial_fit(X[:300], y[:300])
    assert 0 < np.abs(fitted.coef_ - before).max() < 0.01
    with pytest.raises(ValueError, match="classes must be given in the first call"):
        ISDAClassifier().partial_fit(X, y)


def test_progress_is_shown_on_request(digits, capsys):
    ISDAClassifier(0.5, C=1.0, hidden=(8,), epochs=2, verbose=1, random_state=0).fit(digits[0][:100], digits[1][:100])
    assert "epoch 2: loss" in capsys.readouterr().err


def test_two_classes_have_one_row_of_coefficients_with_the_networks_decisions(digits):
    X, y = digits
    X, y = X[y < 2][:120], y[y < 2][:120]
    labels = np.where(np.arange(120) % 3 == 0, -1, y)
    model = ISDAClassifier(0.5, C=0.1, unlabelled=-1, consistency=1.0, epochs=2, random_state=0).fit(X, labels)
    assert model.coef_.shape == (1, 64)
    assert model.intercept_.shape == (1,)
    odds = np.log(model.predict_proba(X)[:, 1] / model.predict_proba(X)[:, 0])
    # The network computes in float32, whose logits are at most some tens here.
    np.testing.assert_allclose(X @ model.coef_[0] + model.intercept_[0], odds, atol=1e-3)
