"""Offsets of margins in ISDAClassifier: part of the bound in training, of nothing in prediction."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from convex_cases import both_rows, least_tilted_value, matrices_of, problem, rows_of
from isda.losses.long_tail import LDAMMargins, LogitAdjustment
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold

import oracles
from isda import ISDAClassifier
from isda.estimator.covariances import row_covariances
from isda.estimator.objective import ConvexObjective

CLASSES = 3


@pytest.fixture(scope="module")
def long_tail():
    """Digits 0 to 3 with 80, 40, 10 and 5 rows, and a balanced test part."""
    X, y = load_digits(n_class=4, return_X_y=True)
    X = X / 16
    chosen = np.concatenate([np.flatnonzero(y == digit)[:size] for digit, size in enumerate((80, 40, 10, 5))])
    others = np.setdiff1d(np.arange(len(y)), chosen)
    rest = np.concatenate([others[y[others] == digit][:80] for digit in range(4)])
    return X[chosen, 10:30], y[chosen], X[rest, 10:30], y[rest]


def with_offset(name, bound, strength=0.7):
    offset = LDAMMargins([5, 2, 1], scale=2.0).table + LogitAdjustment([5, 2, 1]).table
    inputs, labels, counts, weights = problem(CLASSES, n=9)
    rows = rows_of(inputs, labels, counts, weights, CLASSES)
    made = ConvexObjective(
        rows, row_covariances(name, rows), strength=strength, penalty=0.2, bound=bound, offset=offset
    )
    parameters = torch.randn(made.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    weight, intercept = both_rows(parameters)
    sigmas = matrices_of(name, inputs, labels, CLASSES)
    penalty = 0.1 * float(parameters[:, :-1].square().sum())
    return made, parameters, (inputs @ weight.t() + intercept + offset[labels], labels, weight, sigmas), penalty


@pytest.mark.parametrize("name", ["within", "full", "diagonal"])
def test_the_bounds_have_the_offsets_beside_the_logits(name):
    made, parameters, (logits, labels, weight, sigmas), penalty = with_offset(name, "jensen")
    expected = float(oracles.jensen_bound(logits, labels, weight, sigmas, 0.7).mean()) + penalty
    assert made.evaluate(parameters)[0] == pytest.approx(expected, rel=1e-10)
    made, parameters, (logits, labels, weight, sigmas), penalty = with_offset(name, "tilted")
    least = [least_tilted_value(z, weight, sigmas[y], 0.7) - float(z[y]) for z, y in zip(logits, labels, strict=True)]
    assert made.evaluate(parameters)[0] == pytest.approx(np.mean(least) + penalty, rel=1e-8)


@pytest.mark.parametrize("bound", ["jensen", "tilted"])
@pytest.mark.parametrize("strength", [0.0, 0.7])
def test_derivatives_equal_finite_differences(bound, strength):
    made, parameters, _, _ = with_offset("full", bound, strength)
    direction, step = torch.randn_like(parameters), 1e-5
    above, below = made.evaluate(parameters + step * direction), made.evaluate(parameters - step * direction)
    slope = float((made.evaluate(parameters)[1] * direction).sum())
    assert slope == pytest.approx((above[0] - below[0]) / (2 * step), rel=1e-7)
    curved = (above[1] - below[1]) / (2 * step)
    product = made.hessian_product(parameters)(direction)
    torch.testing.assert_close(product, curved, rtol=1e-6, atol=1e-6 * float(curved.abs().max()))


def test_logit_adjustment_of_plain_cross_entropy_takes_the_prior_out_of_the_intercepts(long_tail):
    X, y, _, _ = long_tail
    for classes in (4, 2):
        rows = y < classes
        settings = {"lambda_0": 0.0, "C": 0.5, "standardize": False, "tol": 1e-10}
        ours = ISDAClassifier(**settings, offset="logit-adjustment").fit(X[rows], y[rows])
        plain = LogisticRegression(C=0.5, tol=1e-10, max_iter=10_000).fit(X[rows], y[rows])
        prior = np.log(np.bincount(y[rows]))
        prior = prior - prior.mean() if classes > 2 else prior[1:] - prior[:1]
        np.testing.assert_allclose(ours.coef_, plain.coef_, atol=1e-4)
        np.testing.assert_allclose(ours.intercept_, plain.intercept_ - prior, atol=1e-4)


@pytest.mark.parametrize("offset", ["logit-adjustment", "ldam", LogitAdjustment([80, 40, 10, 5], tau=2.0)])
@pytest.mark.parametrize("hidden", [(), (16,)])
def test_small_classes_are_found_more_often(long_tail, offset, hidden):
    X, y, X_test, y_test = long_tail
    settings = {"lambda_0": 0.5, "C": 1.0, "hidden": hidden, "epochs": 20, "random_state": 0}
    plain, adjusted = (ISDAClassifier(**settings, offset=one).fit(X, y) for one in (None, offset))
    tail = y_test >= 2
    assert adjusted.predict_proba(X_test)[tail, 2:].sum() > plain.predict_proba(X_test)[tail, 2:].sum()


def test_folds_are_judged_with_equal_weights_of_the_classes(long_tail):
    X, y = long_tail[:2]
    X = (X - X.mean(0)) / np.where(X.std(0) > 0, X.std(0), 1)
    folds = list(StratifiedKFold(3).split(X, y))
    settings = {"standardize": False, "scale": 1.0, "offset": LogitAdjustment(np.bincount(y).tolist())}
    results = ISDAClassifier(0.0, cv=folds, **settings).fit(X, y).cv_results_
    C, total, weights = results["param_C"][0], 0.0, 1 / np.bincount(y)[y]
    for train, held_out in folds:
        one = ISDAClassifier(0.0, C=C, tol=1e-7, **settings).fit(X[train], y[train])
        loss = log_loss(y[held_out], one.predict_proba(X[held_out]), sample_weight=weights[held_out], normalize=False)
        total -= loss / weights.sum()
    assert results["mean_test_score"][0] == pytest.approx(total, abs=2e-3)


def test_what_is_no_offset_is_refused(long_tail, tmp_path):
    X, y = long_tail[:2]
    with pytest.raises(ValueError, match="offset must be one of logit-adjustment, ldam"):
        ISDAClassifier(offset="ldma").fit(X, y)
    with pytest.raises(ValueError, match="offset must be for 4 classes, got one for 2"):
        ISDAClassifier(offset=LogitAdjustment([3, 4])).fit(X, y)
    with pytest.raises(ValueError, match="with the sizes of the classes for partial_fit, got 'ldam'"):
        ISDAClassifier(offset="ldam").partial_fit(X, y, classes=range(4))
    model = ISDAClassifier(0.0, C=1.0, offset=LogitAdjustment([80, 40, 10, 5])).fit(X, y)
    with pytest.raises(ValueError, match="plain values"):
        model.save(tmp_path / "model.safetensors")
