"""Folds and the final fit end near the optimum, whatever C is; points that few folds decide about."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from isda.functional.tilt import converged_tilt
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold
from torch import Tensor

from isda import ISDAClassifier
from isda.estimator import trials
from isda.estimator.covariances import ClassRows, row_covariances
from isda.estimator.objective import ConvexObjective
from isda.estimator.solver import Solution, minimise
from isda.estimator.tilts import approximate_tilt


def correlated(rows, features, classes, *, distance, seed=0):
    """Gaussian classes whose means are ``distance`` standard deviations apart; the spectrum falls like 1/k."""
    rng = np.random.default_rng(seed)
    turn, _ = np.linalg.qr(rng.normal(size=(features, features)))
    labels = np.arange(rows) % classes
    means = distance / np.sqrt(2 * features) * rng.normal(size=(classes, features))
    inputs = rng.normal(size=(rows, features)) + means[labels]
    return inputs * np.arange(1, features + 1) ** -0.5 @ turn, labels


def held_out(model, X, y, folds, strength, C):
    """Log-likelihoods of each fold by fits of their own."""
    found = []
    for train, test in folds:
        one = ISDAClassifier(strength, C=C, standardize=model.standardize, tol=1e-8).fit(X[train], y[train])
        found.append(-log_loss(y[test], one.predict_proba(X[test]), labels=one.classes_))
    return found


@pytest.mark.parametrize("standardize", ["columns", "all"])
def test_scores_of_weakly_penalised_folds_are_those_of_fits_of_their_own(standardize):
    """They were -47 where a fit has -0.02: the search ended at once, in coordinates with a direction of rounding."""
    X, y = correlated(300, 1280, 30, distance=16)
    folds = list(StratifiedKFold(5).split(X, y))[:2]
    model = ISDAClassifier("auto", C=1e4, scale=1.0, cv=folds, standardize=standardize).fit(X, y)
    strengths, scores = model.cv_results_["param_lambda_0"], model.cv_results_["mean_test_score"]
    for index in {0, int(np.argmin(scores)), int(np.argmax(scores)), len(scores) - 1}:
        expected = np.mean(held_out(model, X, y, folds, strengths[index], 1e4))
        # Points that are clearly worse have rough solutions, with an error of 2% of the score.
        chosen = index == model.cv_results_["best_index"]
        assert scores[index] == pytest.approx(expected, rel=0 if chosen else 0.02, abs=2e-3)


@pytest.mark.parametrize("strength", [0.0, 0.1, 1.0])
def test_the_objective_is_at_its_minimum_where_the_gradient_is_small_everywhere(strength):
    """800 rows, 60 classes, C = 100: an entry of 1e-5 was reached at an objective 30% above its minimum."""
    X, y = correlated(800, 320, 60, distance=16)
    X = (X - X.mean(0)) / X.std(0)
    rows = ClassRows.of(torch.from_numpy(X), torch.from_numpy(y), 60)
    penalty = 1 / (100 * len(X))
    made = ConvexObjective(rows, row_covariances("within", rows), strength=strength, penalty=penalty, bound="jensen")
    values = []
    for tol in (1e-5, 1e-10):
        model = ISDAClassifier(strength, C=100, standardize=False, tol=tol).fit(X, y)
        parameters = np.concatenate([model.coef_, model.intercept_[:, None]], 1)
        values.append(made.evaluate(torch.from_numpy(parameters)).value)
    assert values[1] <= values[0] <= values[1] * (1 + 1e-4)


@pytest.mark.filterwarnings("error")
def test_a_feature_that_hardly_varies_in_a_fold_takes_no_part_there():
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    X = rng.normal(size=(60, 4)) + 2 * np.eye(4)[y]
    folds = list(StratifiedKFold(3).split(X, y))
    nearly = 1e-7 * rng.normal(size=60)
    nearly[folds[0][1]] += 5 * rng.normal(size=20)  # varies in held-out rows of the first fold only
    padded = np.concatenate([X, nearly[:, None]], 1)
    settings = {"cv": folds, "standardize": "columns", "C": 1.0, "scale": 1.0}
    plain, model = (ISDAClassifier("auto", **settings).fit(rows, y).cv_results_ for rows in (X, padded))
    assert model["split0_test_score"][0] == pytest.approx(plain["split0_test_score"][0], abs=1e-6)


@pytest.fixture(scope="module")
def many():
    return correlated(1200, 60, 4, distance=3)


def test_deciding_by_few_folds_and_rough_solutions_does_not_change_the_choice(many, monkeypatch):
    quick = ISDAClassifier().fit(*many)
    monkeypatch.setattr(trials, "_STANDARD_ERRORS", {1: np.inf, 2: np.inf})
    monkeypatch.setattr(trials, "_ROUGH", 0.0)
    whole = ISDAClassifier().fit(*many)
    assert (whole.cv_results_["n_folds"] == 5).all()
    assert (quick.cv_results_["n_folds"] < 5).sum() >= 5
    names = ("lambda_0_", "C_", "standardize_")
    assert [getattr(quick, name) for name in names] == [getattr(whole, name) for name in names]
    assert quick.scale_ == pytest.approx(whole.scale_, rel=1e-2)


def test_a_point_that_few_folds_have_judged_has_their_scores_and_an_estimated_mean(many):
    results = ISDAClassifier(cv=4).fit(*many).cv_results_
    judged = results["n_folds"] < 4
    assert judged.any()
    assert not judged[results["best_index"]]
    for number in range(4):
        assert (np.isnan(results[f"split{number}_test_score"]) == (results["n_folds"] <= number)).all()
    best = results["mean_test_score"][results["best_index"]]
    assert results["mean_test_score"][judged].max() < best + 5e-3
    assert np.isfinite(results["std_test_score"]).all()


def test_one_fold_decides_only_if_it_holds_out_many_rows(many):
    X, y = many
    few, more = (ISDAClassifier(cv=2).fit(X[:n], y[:n]).cv_results_ for n in (160, 1200))
    assert (few["n_folds"] == 2).all()
    assert set(more["n_folds"]) == {1, 2}
    assert more["n_folds"][more["best_index"]] == 2


@pytest.mark.parametrize("strength", [0.1, 10.0, 100.0])
@pytest.mark.parametrize("enough", [1e-2, 1e-8])
def test_tilts_are_as_near_as_it_is_enough(strength, enough):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(7, 5, generator=generator, dtype=torch.float64)
    logits, table = 3 * torch.randn(40, 7, generator=generator, dtype=torch.float64), strength * weight @ weight.t()
    weights = torch.rand(40, generator=generator, dtype=torch.float64)
    weights /= weights.sum()
    found = approximate_tilt(logits, table, torch.softmax(logits, 1), weights, enough)
    best = converged_tilt(logits, table, torch.softmax(logits, 1))
    apart = found.softmax - found.tilt
    assert float(weights @ (apart * (apart @ table)).sum(1)) <= enough
    excess = float(weights @ (found.value - best.value))
    assert -1e-12 <= excess <= enough / 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tilts_of_large_tables_are_finite_in_every_precision(dtype):
    """Rows that had converged went on to divide rounding by rounding in float32."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(50, 30, generator=generator, dtype=torch.float64)
    logits, table = 20 * torch.randn(200, 50, generator=generator, dtype=torch.float64), 10 * weight @ weight.t()
    exact = converged_tilt(logits, table, torch.softmax(logits, 1))
    logits, table = logits.to(dtype), table.to(dtype)
    found = converged_tilt(logits, table, torch.softmax(logits, 1))
    torch.testing.assert_close(found.value, exact.value.to(dtype), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("strength", [0.0, 100.0])
def test_a_start_that_is_worse_than_none_is_left(strength):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(50, 200, generator=generator, dtype=torch.float64)
    rows = ClassRows.of(inputs, torch.arange(50) % 10, 10)
    start = 1e3 * torch.randn(10, 201, generator=generator, dtype=torch.float64)

    def fitted(first: Tensor | None) -> Solution:
        covariances = row_covariances("within", rows)
        objective = ConvexObjective(rows, covariances, strength=strength, penalty=2e-6, bound="jensen")
        return minimise(objective, first, tol=1e-8, accuracy=1e-6, max_iter=200, near=True)

    plain, begun = fitted(None), fitted(start)
    assert begun.n_iter <= plain.n_iter
    torch.testing.assert_close(begun.parameters, plain.parameters)
