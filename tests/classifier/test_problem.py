"""The convex problem of ISDAClassifier against its formula, and its optimum against scikit-learn's."""

import numpy as np
import pytest
from scipy.optimize import check_grad
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine, make_blobs
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from isda import ISDAClassifier
from isda.classifier import COVARIANCES, Data, Problem, best_scale, smoothed_likelihood

STRENGTH, PENALTY = 1.3, 0.1


def some_rows(features, classes, seed=0):
    chance = np.random.default_rng(seed)
    labels = np.arange(24) % classes
    rows = chance.normal(size=(24, features)) @ chance.normal(size=(features, features)) + labels[:, None]
    return rows, labels, chance.random(24) + 0.5, chance.random(classes) + 0.5


def class_covariances(rows, labels, counts, name):
    """(K, A, A), row by row as the definition has them."""
    classes = labels.max() + 1
    own = []
    for label in range(classes):
        part, weight = rows[labels == label], counts[labels == label]
        centred = part - np.average(part, axis=0, weights=weight)
        own.append(sum(w * np.outer(x, x) for w, x in zip(weight, centred, strict=True)) / weight.sum())
    if name == "full":
        return own
    if name == "diagonal":
        return [np.diag(np.diag(matrix)) for matrix in own]
    shares = [counts[labels == label].sum() / counts.sum() for label in range(classes)]
    return [sum(share * matrix for share, matrix in zip(shares, own, strict=True))] * classes


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("features", [3, 40], ids=["tall", "wide"])
@pytest.mark.parametrize("name", COVARIANCES)
def test_the_objective_is_the_bound_row_by_row(name, features, classes):
    rows, labels, counts, factors = some_rows(features, classes)
    problem = Problem(Data(rows, labels, counts, factors, name), scaling=False)
    chance = np.random.default_rng(1)
    turned, intercepts = 0.1 * chance.normal(size=(classes, len(problem.inputs))), chance.normal(size=classes)
    weights, shifted = problem.for_columns(turned, intercepts)
    covariances = class_covariances(rows, labels, counts, name)
    expected, total = 0.0, 0.0
    for row, label, count in zip(rows, labels, counts, strict=True):
        logits = weights @ row + shifted
        apart = weights - weights[label]
        margins = np.array([difference @ covariances[label] @ difference for difference in apart])
        loss = np.log(np.exp(logits + STRENGTH / 2 * margins).sum()) - logits[label]
        expected += count * factors[label] * loss
        total += count * factors[label]
    value, _, _ = problem.objective(turned, intercepts, STRENGTH, PENALTY)
    assert value == pytest.approx(expected / total + PENALTY / 2 * (weights**2).sum(), rel=1e-9)


@pytest.mark.parametrize("name", COVARIANCES)
@pytest.mark.parametrize("strength", [0.0, STRENGTH])
def test_the_gradient_is_that_of_the_value(name, strength):
    problem = Problem(Data(*some_rows(5, 3), name), scaling="columns")
    shape = 3, len(problem.inputs)

    def unpacked(values):
        return values[:-3].reshape(shape), values[-3:]

    def value(values):
        return problem.objective(*unpacked(values), strength, PENALTY)[0]

    def gradient(values):
        _, by_weights, by_intercepts = problem.objective(*unpacked(values), strength, PENALTY)
        return np.concatenate([by_weights.ravel(), by_intercepts])

    assert check_grad(value, gradient, np.random.default_rng(2).normal(size=shape[0] * shape[1] + 3)) < 1e-5


@pytest.mark.parametrize("load", [load_iris, load_wine, load_breast_cancer, load_digits])
@pytest.mark.parametrize("C", [0.01, 1.0])
def test_without_augmentation_it_is_logistic_regression(load, C):
    X, y = load(return_X_y=True)
    X = StandardScaler().fit_transform(X)[:300]
    y = y[:300]
    ours = ISDAClassifier(0, C, standardize=False, tol=1e-8).fit(X, y)
    theirs = LogisticRegression(C=C, tol=1e-9, max_iter=100_000).fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=0, atol=1e-5)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), rtol=0, atol=1e-5)


def test_weights_of_rows_and_classes_are_those_of_logistic_regression():
    X, y = load_wine(return_X_y=True)
    X, weight = StandardScaler().fit_transform(X), np.random.default_rng(0).random(len(y))
    ours = ISDAClassifier(0, 0.3, standardize=False, class_weight={0: 1.0, 1: 2.0, 2: 0.5}, tol=1e-8)
    theirs = LogisticRegression(C=0.3, class_weight={0: 1.0, 1: 2.0, 2: 0.5}, tol=1e-9, max_iter=10_000).fit(
        X, y, weight
    )
    np.testing.assert_allclose(ours.fit(X, y, weight).coef_, theirs.coef_, rtol=0, atol=1e-5)


@pytest.mark.parametrize("load", [load_iris, load_wine, load_breast_cancer])
@pytest.mark.parametrize("strength", [0.0, 0.01, 1.0])
def test_the_optimum_is_found_with_a_weak_penalty(load, strength):
    X, y = load(return_X_y=True)
    problem = Problem(Data(X, y, np.ones(len(y)), np.ones(y.max() + 1), "within"), "columns")
    penalty = (2 if problem.classes == 2 else 1) / (1e4 * len(y))
    default, _ = problem.solve(strength, 1e4, tol=1e-5, max_iter=1000)
    exact, _ = problem.solve(strength, 1e4, tol=1e-9, max_iter=20_000)
    values = [problem.objective(*found, strength, penalty)[0] for found in (default, exact)]
    assert values[0] == pytest.approx(values[1], rel=1e-3)


@pytest.mark.parametrize("name", COVARIANCES)
def test_any_start_ends_in_the_one_optimum(name):
    problem = Problem(Data(*some_rows(5, 3), name), "columns")
    chance = np.random.default_rng(3)
    start = chance.normal(size=(3, len(problem.inputs))), chance.normal(size=3)
    (cold, _), _ = problem.solve(2.0, 1.0, tol=1e-9, max_iter=5000)
    (warm, _), _ = problem.solve(2.0, 1.0, start, tol=1e-9, max_iter=5000)
    np.testing.assert_allclose(warm, cold, atol=1e-6)


def test_rows_in_fewer_dimensions_have_the_same_optimum():
    """Wide rows are turned into the space that they span; the same rows with columns of zeros are not wide."""
    X, y = make_blobs(30, n_features=40, centers=3, random_state=0)
    wide = ISDAClassifier(1.0, 1.0, standardize=False, tol=1e-9).fit(X, y)
    tall = ISDAClassifier(1.0, 1.0, standardize=False, tol=1e-9).fit(
        np.tile(X, (2, 1)), np.tile(y, 2), np.full(60, 0.5)
    )
    np.testing.assert_allclose(wide.coef_, tall.coef_, atol=1e-6)


def test_strong_augmentation_has_the_directions_of_discriminant_analysis():
    X, y = make_blobs(300, n_features=4, centers=3, cluster_std=3, random_state=0)
    X, y = X[np.argsort(y)], np.sort(y)
    model = ISDAClassifier(1e5, 1e3, standardize=False, tol=1e-9, max_iter=10_000).fit(X, y)
    within = np.mean(class_covariances(X, y, np.ones(300), "within"), axis=0)
    means = np.stack([X[y == label].mean(0) for label in range(3)])
    expected = (means - means.mean(0)) @ np.linalg.inv(within)
    cosines = (model.coef_ * expected).sum(1) / np.linalg.norm(model.coef_, axis=1) / np.linalg.norm(expected, axis=1)
    np.testing.assert_allclose(cosines, 1, atol=1e-3)


def test_the_scale_is_the_best_of_all_factors():
    chance = np.random.default_rng(0)
    logits, labels, counts = chance.normal(size=(4, 50)), chance.integers(4, size=50), chance.random(50) + 0.1
    logits[labels, np.arange(50)] += 0.5
    best = best_scale(logits, labels, counts)
    top = smoothed_likelihood(best * logits, labels, counts)
    for factor in (0.5, 0.9, 1.1, 2.0):
        assert smoothed_likelihood(factor * best * logits, labels, counts) < top


def test_rows_that_are_all_right_do_not_make_the_scale_infinite():
    logits = np.array([[1.0, -1.0], [-1.0, 1.0]])
    assert 0.5 < best_scale(logits, np.array([0, 1]), np.ones(2)) < 10
    assert best_scale(-logits, np.array([0, 1]), np.ones(2)) == pytest.approx(1)
