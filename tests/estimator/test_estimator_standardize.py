"""The scaling of features: forced or chosen by held-out rows, stored with the model; and folds in several processes."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from sklearn.datasets import load_digits, load_wine
from sklearn.linear_model import LogisticRegression

from isda import ISDAClassifier


def ten_per_class(load):
    X, y = load(return_X_y=True)
    rng = np.random.default_rng(0)
    few = np.concatenate([rng.choice(np.flatnonzero(y == label), 10, replace=False) for label in np.unique(y)])
    rest = np.setdiff1d(np.arange(len(y)), few)
    return X[few], y[few], X[rest], y[rest]


@pytest.fixture(scope="module")
def digits():
    return ten_per_class(load_digits)


@pytest.fixture(scope="module")
def wine():
    return ten_per_class(load_wine)


def test_one_scale_for_all_is_logistic_regression_on_rows_of_mean_variance_one(digits):
    X, y, X_test, _ = digits
    spread = np.sqrt(np.mean(X.var(0)[X.var(0) > 0]))
    theirs = LogisticRegression(C=0.5, tol=1e-10, max_iter=10_000).fit((X - X.mean(0)) / spread, y)
    ours = ISDAClassifier(0.0, C=0.5, standardize="all", tol=1e-9).fit(X, y)
    assert ours.standardize_ == "all"
    np.testing.assert_allclose(
        ours.predict_proba(X_test), theirs.predict_proba((X_test - X.mean(0)) / spread), atol=1e-5
    )


def test_pixels_get_one_scale_and_measurements_with_units_one_each(digits, wine):
    for rows, expected, limit in ((digits, "all", 0.1), (wine, "columns", 0.06)):
        X, y, X_test, y_test = rows
        model = ISDAClassifier().fit(X, y)
        assert model.standardize_ == expected
        assert 1 - model.score(X_test, y_test) < limit
        results = model.cv_results_
        assert set(results["param_standardize"]) == {"columns", "all"}
        best = {
            name: results["mean_test_score"][results["param_standardize"] == name].max() for name in ("columns", "all")
        }
        assert max(best, key=best.get) == expected


@pytest.mark.parametrize(
    ("standardize", "scaling"), [(True, "columns"), ("columns", "columns"), ("all", "all"), (False, False)]
)
def test_a_scaling_can_be_forced_and_is_stored(wine, standardize, scaling, tmp_path):
    X, y, X_test, _ = wine
    X, X_test = X[:, :4], X_test[:, :4]
    model = ISDAClassifier(0.0, standardize=standardize, cv=2).fit(X, y)
    assert model.standardize_ == scaling
    assert set(model.cv_results_["param_standardize"]) == {scaling}
    assert "standardize" not in model.cv_results_["params"][0]
    model.save(tmp_path / "model.safetensors")
    for twin in (ISDAClassifier.load(tmp_path / "model.safetensors"), pickle.loads(pickle.dumps(model))):
        assert twin.get_params()["standardize"] == standardize
        assert twin.standardize_ == scaling
        np.testing.assert_array_equal(twin.predict_proba(X_test), model.predict_proba(X_test))


@pytest.mark.parametrize("settings", [{"lambda_0": 1.0, "C": 1.0}, {"hidden": (4,), "epochs": 1}])
def test_without_folds_every_feature_has_its_own_scale(wine, settings):
    X, y, X_test, _ = wine
    auto, columns = (ISDAClassifier(**settings, standardize=way, random_state=0).fit(X, y) for way in ("auto", True))
    assert auto.standardize_ == "columns"
    np.testing.assert_array_equal(auto.predict_proba(X_test), columns.predict_proba(X_test))


@pytest.mark.filterwarnings("error")
def test_constant_features_and_features_of_any_size_are_fitted_with_one_scale(wine):
    X, y, _, _ = wine
    padded = np.concatenate(
        [X[:, :3], np.full((len(X), 1), 1e140), np.zeros((len(X), 1)), np.full((len(X), 1), 0.1)], 1
    )
    plain, model = (ISDAClassifier(1.0, C=1.0, standardize="all").fit(rows, y) for rows in (X[:, :3], padded))
    np.testing.assert_allclose(model.coef_[:, :3], plain.coef_, atol=1e-6)
    for factors in (1e-140, [1e140, 1.0, 1e-140], [1e20, 1e-20, 1.0]):
        chosen = ISDAClassifier(cv=2).fit(X[:, :3] * factors, y)
        assert np.isfinite(chosen.cv_results_["mean_test_score"]).all()
        assert np.isfinite(chosen.coef_).all()
    constant = ISDAClassifier(standardize="all").fit(np.ones((6, 2)), [0, 1] * 3)
    np.testing.assert_allclose(constant.predict_proba(np.ones((1, 2))), 0.5)


def test_the_number_of_processes_changes_nothing(digits):
    X, y = digits[0][::2], digits[1][::2]
    serial, parallel = (ISDAClassifier(0.0, cv=3, n_jobs=jobs).fit(X, y) for jobs in (None, 2))
    assert serial.cv_results_["params"] == parallel.cv_results_["params"]
    np.testing.assert_allclose(parallel.coef_, serial.coef_, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"standardize": "column"}, "standardize must be one of auto, columns, all.* did you mean 'columns'"),
        ({"standardize": 2}, "standardize must be one of auto, columns, all"),
        ({"n_jobs": 0}, "n_jobs must be a number of processes, or -1 for one per processor, got 0"),
        ({"n_jobs": 1.5}, r"n_jobs must be an integer or None, got 1\.5"),
    ],
)
def test_bad_settings_are_refused_in_a_sentence(wine, settings, message):
    model = ISDAClassifier(**settings)
    with pytest.raises(ValueError, match=message):
        model.fit(*wine[:2])
    assert not hasattr(model, "classes_")
