"""The choice of lambda_0 and C: inside of what was tried, by held-out log-likelihood, and repeatable."""

from __future__ import annotations

import re

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold

from isda import ISDAClassifier


@pytest.fixture(scope="module")
def few_digits():
    X, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(1)
    chosen = np.concatenate([rng.choice(np.flatnonzero(y == digit), 8, replace=False) for digit in range(10)])
    return X[chosen], y[chosen]


@pytest.fixture(scope="module")
def chosen(few_digits):
    return ISDAClassifier().fit(*few_digits)


def test_the_choice_is_better_than_all_its_neighbours(chosen):
    results = chosen.cv_results_
    best = results["best_index"]
    assert results["mean_test_score"][best] > results["mean_test_score"].max() - 1e-3
    expected = {"lambda_0": chosen.lambda_0_, "C": chosen.C_, "standardize": chosen.standardize_}
    assert results["params"][best] == expected
    tried = results["param_C"][results["param_standardize"] == chosen.standardize_]
    assert tried.min() < chosen.C_ < tried.max()
    if chosen.lambda_0_ > 0:
        tried = results["param_lambda_0"][results["param_standardize"] == chosen.standardize_]
        assert tried.min() < chosen.lambda_0_ < tried.max()
    assert (results["param_lambda_0"] == 0).any()


def test_scores_are_log_likelihoods_of_held_out_rows(few_digits):
    X, y = few_digits
    X = (X - X.mean(0)) / np.where(X.std(0) > 0, X.std(0), 1)
    folds = list(StratifiedKFold(3).split(X, y))
    model = ISDAClassifier("auto", C=0.3, scale=1.0, cv=folds, standardize=False).fit(X, y)
    results = model.cv_results_
    assert set(results["param_C"]) == {0.3}
    for index in (0, results["best_index"]):
        strength = results["param_lambda_0"][index]
        for number, (train, held_out) in enumerate(folds):
            one = ISDAClassifier(strength, C=0.3, standardize=False, tol=1e-7).fit(X[train], y[train])
            expected = -log_loss(y[held_out], one.predict_proba(X[held_out]))
            assert results[f"split{number}_test_score"][index] == pytest.approx(expected, abs=2e-3)


def test_a_grid_is_left_where_the_optimum_lies_outside():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 5)), np.arange(60) % 2  # nothing to learn: the strongest penalty wins
    # From C = 0.1 on; below 0.03 the scores differ by less than 1e-3 nats, which does not matter.
    assert ISDAClassifier(0.0, scale=1.0).fit(X, y).C_ < 0.05
    X = np.concatenate([rng.normal(size=(60, 1)) + 20 * y[:, None], X], 1)
    assert ISDAClassifier(0.0, scale=1.0).fit(X, y).C_ >= 10


def test_augmentation_that_gains_next_to_nothing_is_left_out():
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    X = rng.normal(size=(60, 4)) + 30 * np.eye(4)[y]
    model = ISDAClassifier().fit(X, y)
    scores, augmented = model.cv_results_["mean_test_score"], model.cv_results_["param_lambda_0"] > 0
    assert augmented.any()
    assert scores[augmented].max() - scores[~augmented].max() < 1e-4
    assert model.lambda_0_ == 0


def test_the_same_rows_give_the_same_choice(few_digits):
    X, y = few_digits[0][:30, 10:20], few_digits[1][:30]
    first, second = (ISDAClassifier(cv=2).fit(X, y) for _ in range(2))
    np.testing.assert_array_equal(first.coef_, second.coef_)
    assert ISDAClassifier(1.0, C=2.0).fit(*few_digits).cv_results_ is None


def test_one_row_per_class_leaves_nothing_to_choose_by():
    model = ISDAClassifier().fit(np.eye(4), np.arange(4))
    assert model.cv_results_ is None
    assert model.predict(np.eye(4)).tolist() == [0, 1, 2, 3]


def test_progress_is_shown_on_request(few_digits, capsys):
    ISDAClassifier(C=0.1, verbose=1).fit(*few_digits)
    told = capsys.readouterr()
    assert re.search(r"lambda_0=0 C=0\.1 scale=[\d.]+: held-out log-likelihood -0", told.err)
    assert told.out == ""


def test_the_search_for_a_strength_begins_with_factors_of_ten(chosen):
    tried = np.asarray(chosen.cv_results_["param_lambda_0"], dtype=float)
    assert np.isclose(tried, 1.0).any()
    assert np.isclose(tried, 10.0).any()
