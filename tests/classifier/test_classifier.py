"""ISDAClassifier behaves like any scikit-learn classifier."""

import pickle

import numpy as np
import pytest
import sklearn
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine, make_blobs
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import isda.classifier
from isda import ISDAClassifier

IRIS, LABELS = load_iris(return_X_y=True)


@parametrize_with_checks([ISDAClassifier(1.0, C=1.0), ISDAClassifier(), ISDAClassifier(0.5, 1.0, covariance="full")])
def test_scikit_learn_contract(estimator, check):
    check(estimator)


def test_works_in_pipelines_and_searches():
    model = make_pipeline(StandardScaler(), ISDAClassifier(1.0, C=1.0))
    assert cross_val_score(clone(model), IRIS, LABELS, cv=3).mean() > 0.93
    search = GridSearchCV(ISDAClassifier(C=1.0), {"lambda_0": [0.0, 1.0], "covariance": ["within", "full"]}, cv=3)
    assert search.fit(IRIS, LABELS).best_score_ > 0.93


def test_sample_weights_are_routed():
    with sklearn.config_context(enable_metadata_routing=True):
        model = ISDAClassifier(1.0, 1.0).set_fit_request(sample_weight=True).set_score_request(sample_weight=False)
        weight = np.random.default_rng(0).random(150)
        found = cross_validate(model, IRIS, LABELS, params={"sample_weight": weight}, cv=3)
    assert found["test_score"].mean() > 0.9


def test_probabilities_and_their_logarithms_agree():
    X, y = make_blobs(60, centers=3, random_state=0)
    model = ISDAClassifier(1.0, C=1.0).fit(X, y)
    np.testing.assert_allclose(np.exp(model.predict_log_proba(X)), model.predict_proba(X), atol=1e-12)
    assert np.isfinite(model.predict_log_proba(1e4 * X)).all()


def test_feature_names_are_kept():
    pandas = pytest.importorskip("pandas")
    frame, y = load_iris(return_X_y=True, as_frame=True)
    model = ISDAClassifier(1.0, C=1.0).fit(frame, y)
    assert model.feature_names_in_.tolist() == frame.columns.tolist()
    assert model.to_logistic_regression().feature_names_in_.tolist() == frame.columns.tolist()
    with pytest.raises(ValueError, match="feature names"):
        model.predict(pandas.DataFrame(frame.to_numpy(), columns=list("abcd")))


@pytest.mark.parametrize("names", [["no", "yes"], ["a", "b", "c"]])
def test_labels_may_be_words(names):
    X, y = make_blobs(60, centers=len(names), cluster_std=0.5, random_state=0)
    model = ISDAClassifier(1.0, C=1.0).fit(X, np.array(names)[y])
    assert model.classes_.tolist() == names
    assert model.coef_.shape == (1 if len(names) == 2 else 3, 2)
    assert (model.predict(X) == np.array(names)[y]).all()
    copied = pickle.loads(pickle.dumps(model))
    np.testing.assert_allclose(copied.predict_proba(X), model.predict_proba(X))


@pytest.mark.parametrize("covariance", ["within", "full", "diagonal"])
@pytest.mark.parametrize("standardize", ["auto", "columns", "all", True, False])
def test_every_covariance_and_scaling_learns(covariance, standardize):
    model = ISDAClassifier(0.3, C=1.0, covariance=covariance, standardize=standardize).fit(IRIS, LABELS)
    assert model.score(IRIS, LABELS) > 0.9


def test_sparse_rows_are_dense_ones(monkeypatch):
    X, y = load_digits(return_X_y=True)
    X, y = X[:200], y[:200]
    from_sparse = ISDAClassifier(1.0, C=1.0).fit(csr_array(X), y)
    from_dense = ISDAClassifier(1.0, C=1.0).fit(X, y)
    np.testing.assert_allclose(from_sparse.coef_, from_dense.coef_, atol=1e-9)
    np.testing.assert_allclose(from_sparse.predict_proba(csr_array(X)), from_dense.predict_proba(X), atol=1e-9)
    with pytest.raises(ValueError, match=r"sparse X must take at most 2\.1 GB.*TruncatedSVD"):
        ISDAClassifier().fit(csr_array((10_000, 1_000_000)), np.arange(10_000) % 2)


def test_a_refused_or_interrupted_fit_changes_nothing(monkeypatch):
    model = ISDAClassifier(1.0, C=1.0).fit(IRIS, LABELS)
    before = model.predict_proba(IRIS)
    with pytest.raises(ValueError, match="two classes"):
        model.fit(IRIS[:, :2], np.zeros(150))

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(isda.classifier.Problem, "solve", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.fit(IRIS[:, :3], np.where(LABELS == 0, "a", "b"))
    assert model.n_features_in_ == 4
    np.testing.assert_allclose(model.predict_proba(IRIS), before)
    fresh = ISDAClassifier()
    with pytest.raises(KeyboardInterrupt):
        fresh.fit(IRIS, LABELS)
    with pytest.raises(NotFittedError):
        fresh.predict(IRIS)


def test_a_second_fit_forgets_the_first():
    frame, y = load_iris(return_X_y=True, as_frame=True)
    model = ISDAClassifier(1.0, 1.0).fit(frame, y).fit(IRIS[:, :2], LABELS)
    assert not hasattr(model, "feature_names_in_")
    assert model.n_features_in_ == 2


def test_weight_two_is_the_row_twice_and_weight_zero_none():
    counts = np.random.default_rng(0).integers(0, 3, size=150)
    weighted = ISDAClassifier(1.0, 1.0, tol=1e-8).fit(IRIS, LABELS, counts)
    repeated = ISDAClassifier(1.0, 1.0, tol=1e-8).fit(IRIS.repeat(counts, axis=0), LABELS.repeat(counts))
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, atol=1e-5)


def test_constant_features_take_no_part():
    padded = np.concatenate([IRIS, np.full((150, 1), 1e6 + 0.1), np.zeros((150, 1))], axis=1)
    model, plain = ISDAClassifier(1.0, C=1.0).fit(padded, LABELS), ISDAClassifier(1.0, C=1.0).fit(IRIS, LABELS)
    np.testing.assert_allclose(model.coef_[:, :4], plain.coef_, atol=1e-4)
    np.testing.assert_allclose(model.coef_[:, 4:], 0, atol=1e-12)


def test_a_class_of_weight_zero_is_no_reason_to_fail():
    model = ISDAClassifier(1.0, 1.0, class_weight={0: 1.0, 1: 1.0, 2: 0.0}).fit(IRIS, LABELS)
    assert model.predict_proba(IRIS[LABELS < 2])[:, 2].max() < 0.5


def test_too_few_steps_are_told():
    with pytest.warns(ConvergenceWarning, match="3 steps"):
        ISDAClassifier(0.0, 1e4, max_iter=3).fit(IRIS, LABELS)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lambda_0": -1}, "lambda_0 must be a number from 0"),
        ({"lambda_0": "much"}, "lambda_0 must be a number"),
        ({"C": 0}, "C must be a number"),
        ({"C": float("nan")}, "C must be a number"),
        ({"covariance": "shared"}, "covariance must be one of 'within'"),
        ({"standardize": "rows"}, "standardize must be one of"),
        ({"cv": 1}, "cv must be an integer from 2"),
        ({"cv": "five"}, "cv must be a number of folds"),
        ({"tol": 0}, "tol must be a number"),
        ({"max_iter": 0.5}, "max_iter must be an integer"),
    ],
)
def test_wrong_settings_are_refused_in_a_sentence(settings, message):
    with pytest.raises(ValueError, match=message):
        ISDAClassifier(**settings).fit(IRIS, LABELS)


def test_values_whose_squares_overflow_are_refused():
    with pytest.raises(ValueError, match="X must hold values of magnitude at most"):
        ISDAClassifier(1.0, 1.0).fit(1e200 * IRIS, LABELS)


# -- the choice of settings --------------------------------------------------------------------------------------------


def few(load, per_class, seed=0):
    X, y = load(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(y))
    train = np.concatenate([order[y[order] == label][:per_class] for label in np.unique(y)])
    test = np.setdiff1d(order, train)
    return X[train], y[train], X[test], y[test]


@pytest.mark.parametrize(
    ("load", "per_class", "limit"),
    [(load_digits, 10, 0.45), (load_wine, 5, 0.45), (load_breast_cancer, 10, 0.45), (load_iris, 5, 0.4)],
)
def test_few_rows_do_not_make_it_overconfident(load, per_class, limit):
    losses = []
    for seed in range(5):
        X, y, test, labels = few(load, per_class, seed)
        likely = ISDAClassifier().fit(X, y).predict_proba(test)
        losses.append(-np.log(likely[np.arange(len(labels)), labels]).mean())
    assert np.mean(losses) < limit


def test_the_choice_is_the_best_of_what_was_tried():
    X, y, _, _ = few(load_digits, 10)
    model = ISDAClassifier().fit(X, y)
    results = model.cv_results_
    chosen = results["params"][results["best_index"]]
    assert chosen == {"lambda_0": model.lambda_0_, "C": model.C_, "standardize": model.standardize_}
    assert results["mean_test_score"][results["best_index"]] > results["mean_test_score"].max() - 1e-3


def test_pixels_get_one_scale_and_columns_with_units_one_each():
    X, y, _, _ = few(load_digits, 10)
    assert ISDAClassifier().fit(X, y).standardize_ == "all"
    X, y, _, _ = few(load_wine, 10)
    assert ISDAClassifier().fit(X, y).standardize_ == "columns"


@pytest.mark.parametrize("given", [{"lambda_0": 0.0}, {"lambda_0": 3.0}, {"C": 0.1}])
def test_what_is_given_is_kept(given):
    X, y, _, _ = few(load_wine, 10)
    model = ISDAClassifier(**given).fit(X, y)
    for name, value in given.items():
        assert getattr(model, f"{name}_") == pytest.approx(value)
    assert len(model.cv_results_["params"]) > 2


def test_nothing_is_chosen_without_auto_or_without_rows_to_hold_out():
    model = ISDAClassifier(1.0, 0.5).fit(IRIS, LABELS)
    assert model.cv_results_ is None
    assert model.scale_ == pytest.approx(1)
    alone = ISDAClassifier().fit(IRIS[[0, 60, 120]], LABELS[[0, 60, 120]])
    assert alone.cv_results_ is None
    assert alone.predict(IRIS[[0, 60, 120]]).tolist() == [0, 1, 2]


def test_a_class_of_one_row_is_learnt_too():
    chosen = np.r_[0:10, 50:60, 100]
    model = ISDAClassifier().fit(IRIS[chosen], LABELS[chosen])
    assert model.classes_.tolist() == [0, 1, 2]
    assert model.predict_proba(IRIS[[100]])[0, 2] > model.predict_proba(IRIS[[0]])[0, 2]


def test_the_choice_is_the_same_with_threads_and_with_the_same_seed():
    X, y, test, _ = few(load_digits, 5)
    first = ISDAClassifier(random_state=3).fit(X, y).predict_proba(test)
    np.testing.assert_allclose(ISDAClassifier(random_state=3, n_jobs=2).fit(X, y).predict_proba(test), first, atol=1e-6)


def test_splits_of_ones_own():
    X, y, _, _ = few(load_wine, 10)
    splitter = StratifiedKFold(3, shuffle=True, random_state=1)
    by_splitter = ISDAClassifier(cv=splitter).fit(X, y)
    by_list = ISDAClassifier(cv=list(splitter.split(X, y))).fit(X, y)
    np.testing.assert_allclose(by_splitter.coef_, by_list.coef_)


@pytest.mark.parametrize("covariance", ["within", "full", "diagonal"])
def test_labels_drawn_by_lot_are_not_predicted(covariance):
    chance = np.random.default_rng(0)
    X, y = chance.normal(size=(60, 20)), chance.integers(2, size=60)
    likely = ISDAClassifier(covariance=covariance).fit(X, y).predict_proba(chance.normal(size=(200, 20)))
    assert -np.log(likely).mean() < 0.9


@pytest.mark.parametrize("classes", [2, 3])
def test_to_logistic_regression_has_the_same_probabilities(classes):
    X, y = IRIS[classes > LABELS], LABELS[classes > LABELS]
    model = ISDAClassifier().fit(X, y)
    plain = model.to_logistic_regression()
    np.testing.assert_allclose(plain.predict_proba(X), model.predict_proba(X), atol=1e-12)
    assert (plain.predict(X) == model.predict(X)).all()
