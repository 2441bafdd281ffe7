"""The scale of the logits: the best factor by brute force, and what it does to a fitted classifier."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold

from isda import ISDAClassifier
from isda.estimator.data import best_scale


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return X[:120, 10:40], y[:120], X[120:600, 10:40], y[120:600]


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
def test_it_is_the_best_of_all_factors(classes, size):
    generator = torch.Generator().manual_seed(classes)
    labels = torch.randint(classes, (40,), generator=generator)
    logits = torch.randn(40, classes, generator=generator, dtype=torch.float64)
    logits = size * (logits + torch.nn.functional.one_hot(labels, classes))
    weights = 3 * torch.rand(40, generator=generator, dtype=torch.float64)

    def value(scale):
        """By the definition: every row's log-likelihood, and a row in all that has every label alike."""
        each = torch.log_softmax(scale * logits, 1)
        return float(
            sum(w * row[y] + w / weights.sum() * row.mean() for w, row, y in zip(weights, each, labels, strict=True))
        )

    best = best_scale(logits, labels, weights)
    tried = best * np.geomspace(0.01, 100, 401)
    assert value(best) >= max(map(value, tried)) - 1e-9
    assert max(tried, key=value) == pytest.approx(best)


def test_rows_that_are_all_right_do_not_make_it_infinite_and_logits_that_say_nothing_stay():
    logits, labels = 5 * torch.eye(3), torch.arange(3)
    few, many = (best_scale(logits.repeat(n, 1), labels.repeat(n), torch.ones(3 * n)) for n in (1, 100))
    assert 0 < few < many < 10
    assert best_scale(-logits, labels, torch.ones(3)) == 1
    assert best_scale(torch.zeros(3, 3), labels, torch.ones(3)) == 1


def test_the_chosen_scale_multiplies_the_optimum_and_is_that_of_the_folds(digits):
    X, y, _, _ = digits
    folds = list(StratifiedKFold(3).split(X, y))
    model = ISDAClassifier(10.0, C="auto", cv=folds, standardize=True).fit(X, y)
    plain = ISDAClassifier(10.0, C=model.C_).fit(X, y)
    assert plain.scale_ == 1
    assert model.scale_ == pytest.approx(model.cv_results_["scale"][model.cv_results_["best_index"]], rel=0.01)
    np.testing.assert_allclose(model.coef_, model.scale_ * plain.coef_, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(model.intercept_, model.scale_ * plain.intercept_, rtol=1e-4, atol=1e-7)
    assert ISDAClassifier(10.0, C=model.C_, scale=2.0).fit(X, y).coef_ == pytest.approx(2 * plain.coef_)


def test_a_strong_augmentation_gets_its_likelihood_back(digits):
    X, y, X_test, y_test = digits
    small, scaled = (ISDAClassifier(100.0, scale=scale).fit(X, y) for scale in (1.0, "auto"))
    assert scaled.scale_ > 2
    assert log_loss(y_test, scaled.predict_proba(X_test)) < 0.8 * log_loss(y_test, small.predict_proba(X_test))


def test_strong_augmentation_has_the_directions_of_discriminant_analysis():
    """As lambda grows with lambda C fixed, w_j becomes a multiple of (Sigma + K / (2 lambda C N) I)^-1 (mu_j - mu)."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(3), 40)
    X = rng.normal(size=(120, 5)) @ rng.normal(size=(5, 5)) + rng.normal(size=(3, 5))[y]
    means = np.stack([X[y == label].mean(0) for label in range(3)])
    within = (X - means[y]).T @ (X - means[y]) / len(X)
    for product in (0.03, 1.0):
        model = ISDAClassifier(1e5, C=product / 1e5, standardize=False, tol=1e-9).fit(X, y)
        shrunk = within + 3 / (2 * product * len(X)) * np.eye(5)
        expected = np.linalg.solve(shrunk, (means - means.mean(0)).T).T
        ours = model.coef_ - model.coef_.mean(0)
        np.testing.assert_allclose(ours / np.linalg.norm(ours), expected / np.linalg.norm(expected), atol=1e-3)


def test_fits_that_go_on_start_from_the_optimum_not_from_its_multiple(digits, tmp_path):
    X, y, X_test, _ = digits
    model = ISDAClassifier(10.0, standardize=True, warm_start=True).fit(X, y)
    model.save(tmp_path / "model.safetensors")
    assert ISDAClassifier.load(tmp_path / "model.safetensors").scale_ == model.scale_
    first, steps, before = model.coef_, model.n_iter_[0], model.predict_proba(X_test)
    model.set_params(C=model.C_, scale=model.scale_).fit(X, y)
    np.testing.assert_allclose(model.coef_, first, rtol=1e-4, atol=1e-7)
    assert model.n_iter_[0] < steps
    model.set_params(learning_rate=1e-6).partial_fit(X, y)
    np.testing.assert_allclose(model.predict_proba(X_test), before, atol=1e-3)


def test_what_is_no_scale_is_refused(digits):
    with pytest.raises(ValueError, match=r"scale must be a finite number >= 1e-30 and <= 1e\+30, got 0"):
        ISDAClassifier(scale=0).fit(*digits[:2])
