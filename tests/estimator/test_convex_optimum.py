"""The optimum: scikit-learn's at lambda_0=0, the same from every start and in the space of the rows."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from convex_cases import NAMES, A, objective, problem
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from isda import ISDAClassifier
from isda.estimator.convex import ConvexProblem, principal_axes
from isda.estimator.covariances import KEEPS_AXES, ClassRows, row_covariances
from isda.estimator.data import EncodedData
from isda.estimator.fitting import stratified_folds
from isda.estimator.objective import ConvexObjective
from isda.estimator.solver import Preconditioner, minimise


@pytest.fixture(scope="module", params=["three classes", "two classes"])
def rows(request):
    X, y = (load_iris if request.param == "three classes" else load_breast_cancer)(return_X_y=True)
    return StandardScaler().fit_transform(X)[::2], y[::2]


@pytest.mark.parametrize("C", [1e-4, 0.05, 5.0, 1e4])
@pytest.mark.parametrize("weighted", [False, True])
def test_without_augmentation_it_is_logistic_regression(rows, C, weighted):
    X, y = rows
    weights = np.random.default_rng(0).uniform(0.2, 3, len(y)) if weighted else None
    ours = ISDAClassifier(0.0, C=C, standardize=False, tol=1e-10).fit(X, y, sample_weight=weights)
    theirs = LogisticRegression(C=C, tol=1e-12, max_iter=10_000, solver="newton-cg").fit(X, y, sample_weight=weights)
    assert ours.coef_.shape == theirs.coef_.shape
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-4)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-4)
    assert ours.gradient_norm_ <= 1e-10
    if len(theirs.intercept_) > 1:
        assert abs(ours.intercept_.sum()) < 1e-8


def test_standardize_is_logistic_regression_on_standardised_rows(rows):
    X, y = rows
    stretched = X * np.geomspace(0.01, 100, X.shape[1]) + 3
    ours = ISDAClassifier(0.0, C=0.5, tol=1e-10).fit(stretched, y)
    theirs = LogisticRegression(C=0.5, tol=1e-10, max_iter=10_000).fit(StandardScaler().fit_transform(stretched), y)
    np.testing.assert_allclose(
        ours.decision_function(stretched),
        theirs.decision_function(StandardScaler().fit_transform(stretched)),
        atol=1e-4,
    )


def test_balanced_classes_are_those_of_logistic_regression(rows):
    X, y = rows[0][:80], rows[1][:80]
    ours = ISDAClassifier(0.0, C=1.0, standardize=False, tol=1e-10, class_weight="balanced").fit(X, y)
    theirs = LogisticRegression(C=1.0, tol=1e-10, max_iter=10_000, class_weight="balanced").fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "bound", "num_classes"),
    [(name, "jensen", classes) for name in NAMES for classes in (2, 3)]
    + [("within", "tilted", 2), ("within", "tilted", 3), ("shrunk", "tilted", 3)],
)
def test_different_starts_one_optimum(name, bound, num_classes):
    found = []
    for seed in range(2):
        made = objective(name, bound, num_classes, penalty=0.02)
        start = 2 * torch.randn(made.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        found.append(minimise(made, start, tol=1e-9, accuracy=1e-9, max_iter=1000))
        assert found[-1].converged
        assert float(made.evaluate(found[-1].parameters)[1].abs().max()) <= 1e-9
    for other in found[1:]:
        torch.testing.assert_close(other.parameters[:, :-1], found[0].parameters[:, :-1], rtol=0, atol=1e-6)
        assert other.value == pytest.approx(found[0].value, abs=1e-12)


@pytest.mark.parametrize("name", ["within", "full", "shared", "identity"])
@pytest.mark.parametrize("bound", ["jensen", "tilted"])
@pytest.mark.parametrize("features", [5, 60])
@pytest.mark.parametrize(("strength", "C"), [(0.8, 0.5), (0.0, 100.0), (50.0, 1e-3)])
def test_rows_are_solved_in_their_principal_axes(name, bound, features, strength, C):
    rng = np.random.default_rng(0)
    labels = np.arange(18) % 3
    inputs = rng.normal(size=(18, features)) + labels[:, None]
    inputs[:2] = inputs[3]  # rows that occur more than once leave fewer directions
    convex = ConvexProblem(strength=strength, C=C, scale=1.0, covariance=name, bound=bound, tol=1e-10, max_iter=1000)
    data = EncodedData(inputs, labels, rng.uniform(0.5, 2, 18), np.array([1.0, 0.5, 2.0]), 3)
    turned = convex.fit(data)
    plain = convex.fit(data, reduce=False)
    np.testing.assert_allclose(turned.weight, plain.weight, atol=1e-6 * max(1, np.abs(plain.weight).max()))
    np.testing.assert_allclose(turned.intercept, plain.intercept, atol=1e-6)


def test_augmentation_moves_the_optimum(rows):
    X, y = rows
    plain, augmented = (ISDAClassifier(strength, C=1.0).fit(X, y) for strength in (0.0, 5.0))
    assert np.abs(plain.coef_ - augmented.coef_).max() > 0.05


def test_too_few_steps_are_told():
    X, y = load_breast_cancer(return_X_y=True)
    with pytest.warns(ConvergenceWarning, match="raise max_iter"):
        ISDAClassifier(1.0, C=10.0, max_iter=2).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = ISDAClassifier(1.0, C=10.0).fit(X, y)
    assert model.gradient_norm_ <= model.tol
    assert 2 < model.n_iter_[0] < 200


def test_a_warm_start_saves_steps_and_ends_where_a_cold_one_does(rows):
    X, y = rows
    cold = ISDAClassifier(1.0, C=1.0, tol=1e-9).fit(X, y)
    warm = ISDAClassifier(1.0, C=1.0, tol=1e-9, warm_start=True).fit(X, y)
    warm.fit(X, y)
    assert warm.n_iter_[0] <= 1
    np.testing.assert_allclose(warm.coef_, cold.coef_, atol=1e-6)


def test_folds_keep_every_class_in_training_and_hold_every_row_out_once():
    labels = np.array([0] * 7 + [1] * 3 + [2])
    pairs = stratified_folds(5, np.zeros((11, 1)), labels, seed=3)
    assert len(pairs) == 5
    for train, held_out in pairs:
        assert set(labels[train]) == {0, 1, 2}
        assert sorted([*train, *held_out]) == list(range(11))
    assert sorted(np.concatenate([held_out for _, held_out in pairs])) == list(range(10))


def test_float32_rows_of_low_rank_need_no_penalty():
    """Their second moments have negative eigenvalues by rounding; the preconditioner must not mind."""
    chance = torch.Generator().manual_seed(0)
    inputs = torch.randn(2000, 3, generator=chance) @ torch.randn(3, 300, generator=chance)
    rows = ClassRows.of(inputs, torch.arange(2000) % 3, 3)
    flat = ConvexObjective(rows, row_covariances("within", rows), strength=1.0, penalty=1e-15, bound="jensen")
    here, preconditioner = flat.evaluate(torch.zeros(3, 301)), Preconditioner(flat)
    preconditioner.update(here)
    assert torch.isfinite(preconditioner.solve(torch.randn(3, 301, generator=chance))).all()
    flat.covariances = flat.covariances._replace(moment=torch.full((300, 300), float("nan")))
    with pytest.raises(ValueError, match="finite second moments"):
        Preconditioner(flat).update(here)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("turned", [False, True])
def test_the_preconditioner_is_the_inverse_of_the_matrix_it_stands_for(name, turned):
    inputs, labels, counts, _ = problem(3, n=30, weighted=True)
    rows = ClassRows.of(inputs, labels, 3, weights=counts, counts=counts)
    if turned:
        if name in KEEPS_AXES:
            pytest.skip("not turned")
        axes = principal_axes(rows)
        rows = rows._replace(inputs=axes.transform(rows.inputs), variances=axes.variances)
    made = ConvexObjective(rows, row_covariances(name, rows), strength=1.3, penalty=0.1, bound="jensen")
    preconditioner, parameters = Preconditioner(made), torch.randn(3, A + 1, dtype=torch.float64)
    here = made.evaluate(parameters)
    preconditioner.update(here)
    second = (rows.inputs * rows.loss_weights.unsqueeze(1)).t() @ rows.inputs
    plain = row_covariances(name, rows._replace(variances=None))
    matrix = here.curvature * second + 1.3 * here.spread * plain.average + 0.1 * torch.eye(A)
    assert preconditioner.square(parameters) == pytest.approx(
        float((parameters[:, :-1] @ matrix * parameters[:, :-1]).sum())
    )
    torch.testing.assert_close(preconditioner.solve(parameters)[:, :-1] @ matrix, parameters[:, :-1])
