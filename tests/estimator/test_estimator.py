"""ISDAClassifier behaves like any scikit-learn classifier."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris, make_blobs
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import isda.estimator
from isda import ISDAClassifier
from isda.estimator.data import Scaler


@parametrize_with_checks([ISDAClassifier(1.0, C=1.0)])
def test_scikit_learn_contract(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([ISDAClassifier(), ISDAClassifier(0.5, C=1.0, bound="tilted", covariance="shrunk")])
def test_scikit_learn_contract_of_what_takes_longer(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [ISDAClassifier(0.5, hidden=(16,), epochs=60, random_state=0)],
    expected_failed_checks=lambda estimator: {
        "check_sample_weight_equivalence_on_dense_data": "mini-batches do not see a row of weight 2 as two rows"
    },
)
def test_scikit_learn_contract_of_networks(estimator, check):
    check(estimator)


def test_it_is_found_where_it_always_was():
    assert isda.estimator.ISDAClassifier is ISDAClassifier


def test_works_in_pipelines_and_searches():
    X, y = load_iris(return_X_y=True)
    model = make_pipeline(StandardScaler(), ISDAClassifier(1.0, C=1.0))
    assert cross_val_score(clone(model), X, y, cv=3).mean() > 0.93
    search = GridSearchCV(ISDAClassifier(C=1.0), {"lambda_0": [0.0, 1.0], "covariance": ["within", "full"]}, cv=3)
    assert search.fit(X, y).best_score_ > 0.93


def test_probabilities_and_their_logarithms_agree():
    X, y = make_blobs(60, centers=3, random_state=0)
    model = ISDAClassifier(1.0, C=1.0).fit(X, y)
    np.testing.assert_allclose(np.exp(model.predict_log_proba(X)), model.predict_proba(X), atol=1e-12)
    far = model.predict_log_proba(1e4 * X)
    assert np.isfinite(far).all()
    assert (model.predict_proba(1e4 * X) == 0).any()


def test_feature_names_are_kept():
    pandas = pytest.importorskip("pandas")
    X, y = load_iris(return_X_y=True, as_frame=True)
    model = ISDAClassifier(1.0, C=1.0).fit(X, y)
    assert model.feature_names_in_.tolist() == X.columns.tolist()
    with pytest.raises(ValueError, match="feature names"):
        model.predict(pandas.DataFrame(X.to_numpy(), columns=list("abcd")))


@pytest.mark.parametrize("hidden", [(), (8,)])
@pytest.mark.parametrize("labels", [["a", "b", "c"], [3, 5, 9]])
def test_saved_and_pickled_models_predict_the_same(hidden, labels, tmp_path):
    X, y = load_iris(return_X_y=True)
    y = np.array(labels)[y]
    model = ISDAClassifier(1.0, C=1.0, hidden=hidden, epochs=3, random_state=0).fit(X, y)
    model.save(tmp_path / "model.safetensors")
    for twin in (ISDAClassifier.load(tmp_path / "model.safetensors"), pickle.loads(pickle.dumps(model))):
        assert twin.get_params() == model.get_params()
        assert twin.classes_.tolist() == labels
        np.testing.assert_array_equal(twin.predict_proba(X), model.predict_proba(X))
        with pytest.raises(ValueError, match="features"):
            twin.predict(X[:, :2])


def test_another_file_is_refused_by_name(tmp_path):
    (tmp_path / "text").write_text("not a model")
    with pytest.raises(ValueError, match=r"text must be a classifier saved by ISDAClassifier\.save"):
        ISDAClassifier.load(tmp_path / "text")


def test_constant_features_take_no_part():
    X, y = load_iris(return_X_y=True)
    padded = np.concatenate([X, np.full((150, 1), 1e6 + 0.1), np.zeros((150, 1))], 1)
    model, plain = ISDAClassifier(1.0, C=1.0).fit(padded, y), ISDAClassifier(1.0, C=1.0).fit(X, y)
    np.testing.assert_allclose(model.coef_[:, :4], plain.coef_, atol=1e-4)
    assert np.isfinite(model.predict_proba(padded)).all()


@pytest.mark.parametrize("value", [0.1, 1 / 3, -7e5])
def test_the_rounding_of_a_constant_feature_is_not_its_spread(value):
    """The mean of many equal numbers need not be that number."""
    rows = np.full((1601, 3), value)
    assert Scaler.of(rows, np.ones(len(rows)), "columns").spread.tolist() == [1, 1, 1]


@pytest.mark.parametrize("name", ["within", "shrunk", "full", "diagonal", "shared", "identity"])
@pytest.mark.parametrize("bound", ["jensen", "tilted"])
def test_every_covariance_and_bound_learns(name, bound):
    X, y = load_iris(return_X_y=True)
    assert ISDAClassifier(0.3, C=1.0, covariance=name, bound=bound).fit(X, y).score(X, y) > 0.9


def test_float32_rows_are_enough():
    X, y = load_iris(return_X_y=True)
    exact, single = (ISDAClassifier(1.0, C=1.0).fit(X.astype(kind), y) for kind in (np.float64, np.float32))
    np.testing.assert_allclose(single.coef_, exact.coef_, atol=1e-4)


@pytest.mark.parametrize("labels", [[-1, 1], [-1, 0, 1], [-1.0, 0.0, 1.0], ["-1", "0", "1"]])
def test_minus_one_is_a_class_unless_it_is_said_to_be_the_mark_of_unlabelled_rows(labels):
    X, y = make_blobs(90, centers=len(labels), cluster_std=0.3, random_state=0)
    y = np.array(labels)[y]
    model = ISDAClassifier(0.5, C=1.0).fit(X, y)
    assert model.classes_.tolist() == labels
    assert model.score(X, y) > 0.95
    assert not hasattr(model, "network_")
    streamed = ISDAClassifier(0.5, C=1.0).partial_fit(X, y, classes=labels)
    assert streamed.classes_.tolist() == labels


def test_with_a_mark_two_other_classes_are_needed():
    X, y = make_blobs(60, centers=2, random_state=0)
    model = ISDAClassifier(0.5, C=1.0, unlabelled=-1)
    with pytest.raises(ValueError, match="at least two classes, got one class: 0; 30 rows are unlabelled=-1"):
        model.fit(X, -y)
    with pytest.raises(ValueError, match="got none; 60 rows are unlabelled=-1"):
        model.fit(X, np.full(60, -1))
    with pytest.raises(ValueError, match="classes must not hold the label of unlabelled rows, got -1"):
        model.partial_fit(X, -y, classes=[-1, 0])
    assert not hasattr(model, "classes_")
    # A mark of another type than the labels is none of them.
    assert model.fit(X, np.array(["a", "b"])[y]).classes_.tolist() == ["a", "b"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lambda_0": -1}, "lambda_0 must be a finite number >= 0 and <= 1e\\+09, got -1"),
        ({"lambda_0": 1e300}, "lambda_0 must be a finite number >= 0 and <= 1e\\+09, got 1e\\+300"),
        ({"lambda_0": 10**400}, "lambda_0 must be a finite number"),
        ({"lambda_0": "automatic"}, "lambda_0 must be a number or 'auto', got 'automatic'"),
        ({"C": 0}, "C must be a finite number >= 1e-12 and <= 1e\\+12, got 0"),
        ({"C": float("nan")}, "C must be a finite number .* got nan"),
        ({"C": 1e300}, "C must be a finite number .* got 1e\\+300"),
        ({"C": 1e-300}, "C must be a finite number .* got 1e-300"),
        ({"scale": 1e300}, "scale must be a finite number .* got 1e\\+300"),
        ({"class_weight": {0: float("inf")}}, "class_weight must hold finite numbers >= 0 .* got inf for class 0"),
        ({"class_weight": {0: -1}}, "class_weight must hold finite numbers >= 0 .* got -1.0 for class 0"),
        ({"class_weight": {1: float("nan")}}, "class_weight must hold finite numbers >= 0 .* got nan for class 1"),
        ({"class_weight": dict.fromkeys(range(3), 0.0)}, "class_weight times sample_weight must have a sum"),
        ({"covariance": "ful"}, "covariance must be one of .* did you mean 'full'"),
        ({"bound": "tilt"}, "bound must be one of jensen, tilted"),
        ({"tol": 0}, "tol must be a finite number > 0"),
        ({"max_iter": 0}, "max_iter must be a positive integer, got 0"),
        ({"validation_fraction": 1}, "validation_fraction must be a finite number >= 0 and < 1"),
        ({"hidden": 3}, "hidden must be a tuple of widths, got 3"),
        ({"cv": 1}, "cv must be at least 2 folds, got 1"),
        ({"cv": 0.5}, "cv must be a number of folds, a splitter or a list of splits"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_bad_settings_are_refused_in_a_sentence(settings, message):
    X, y = load_iris(return_X_y=True)
    model = ISDAClassifier(**settings)
    with pytest.raises(ValueError, match=message):
        model.fit(X, y)
    assert not hasattr(model, "classes_")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("settings", [{}, {"lambda_0": 1.0, "C": 1.0}, {"hidden": (4,), "epochs": 2}])
def test_values_whose_squares_overflow_are_refused_in_a_sentence(settings):
    X, y = load_iris(return_X_y=True)
    for large in (1e308, -1e308, 1e200):
        outlier = np.where(np.arange(600).reshape(X.shape) == 7, large, X)
        with pytest.raises(ValueError, match=r"X must hold values smaller than 6\.4e\+147 in magnitude, got 1e\+"):
            ISDAClassifier(**settings).fit(outlier, y)
    with pytest.raises(ValueError, match=r"smaller than 8\.8e\+12 in magnitude, got 7\.9e\+20; set standardize=True"):
        ISDAClassifier(standardize=False, **settings).fit(1e20 * X, y)
    model = ISDAClassifier(**settings).fit(X, y)
    with pytest.raises(ValueError, match=r"got values up to 1e\+308: the logits of 1 of 150 rows overflow"):
        model.predict_proba(np.where(np.arange(600).reshape(X.shape) == 7, 1e308, X))


@pytest.mark.filterwarnings("error")
def test_what_is_large_but_not_too_large_is_fitted():
    X, y = load_iris(return_X_y=True)
    plain = ISDAClassifier(1.0, C=1.0).fit(X, y)
    huge = ISDAClassifier(1.0, C=1.0).fit(1e140 * X, y)
    np.testing.assert_allclose(1e140 * huge.coef_, plain.coef_, rtol=1e-6)
    padded = ISDAClassifier(1.0, C=1.0).fit(np.concatenate([X, np.full((150, 1), 1e140)], 1), y)
    np.testing.assert_allclose(padded.coef_[:, :4], plain.coef_, rtol=1e-6)
    for settings in ({"lambda_0": 1e9, "C": 1.0}, {"lambda_0": 0, "C": 1e12}, {"lambda_0": 1.0, "C": 1e-12}):
        assert np.isfinite(ISDAClassifier(**settings).fit(X, y).coef_).all()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (np.inf, "sample_weight contains infinity"),
        (np.nan, "sample_weight contains NaN"),
        (-1.0, "sample_weight"),
        (1e308, r"sample_weight must have a sum between 1e-30 and 1e\+30, got weights up to 1e\+308"),
        (1e-300, "sample_weight must have a sum between"),
        (0.0, "[Ss]ample.weight"),
    ],
)
def test_sample_weights_that_cannot_be_summed_are_refused(weight, message):
    X, y = load_iris(return_X_y=True)
    for settings in ({}, {"hidden": (4,), "epochs": 1}):
        with pytest.raises(ValueError, match=message):
            ISDAClassifier(**settings).fit(X, y, sample_weight=np.full(150, weight))


@pytest.mark.filterwarnings("error")
def test_a_class_of_weight_zero_is_no_reason_to_fail():
    X, y = load_iris(return_X_y=True)
    for offset in (None, "logit-adjustment"):
        model = ISDAClassifier(class_weight={0: 0}, offset=offset, cv=2).fit(X[::3], y[::3])
        assert np.isfinite(model.cv_results_["mean_test_score"]).all()
        assert np.isfinite(model.coef_).all()


def test_bad_rows_are_refused_in_a_sentence():
    sparse = pytest.importorskip("scipy.sparse")
    X, y = load_iris(return_X_y=True)
    with pytest.raises(ValueError, match="at least two classes"):
        ISDAClassifier().fit(X, np.zeros(150))
    with pytest.raises(ValueError, match="NaN"):
        ISDAClassifier().fit(np.where(X > 7, np.nan, X), y)
    with pytest.raises(TypeError, match=r"[Ss]parse"):
        ISDAClassifier().fit(sparse.csr_matrix(X), y)
    with pytest.raises(ValueError, match="sample_weight"):
        ISDAClassifier().fit(X, y, sample_weight=-np.ones(150))
