"""ISDAClassifier as a LogisticRegression of scikit-learn: the same probabilities, for all that takes one."""

import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_iris, make_classification
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.utils.validation import check_is_fitted

from isda import ISDAClassifier

X, Y = load_iris(return_X_y=True)
SETTINGS = [{}, {"standardize": False}, {"standardize": "all", "scale": 3.0}, {"covariance": "full", "bound": "tilted"}]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("labels", [Y, (Y == 1).astype(int), np.array(["ant", "bee", "cow"])[Y]])
def test_probabilities_are_the_same(settings, labels):
    model = ISDAClassifier(1.0, C=1.0, **settings).fit(X, labels)
    linear = model.to_logistic_regression()
    check_is_fitted(linear)
    assert type(linear) is LogisticRegression
    rows = 3 * X - 1  # also away from the training rows
    np.testing.assert_allclose(linear.predict_proba(rows), model.predict_proba(rows), rtol=0, atol=1e-12)
    np.testing.assert_array_equal(linear.predict(rows), model.predict(rows))
    assert linear.coef_.shape == (1 if len(set(labels)) == 2 else 3, 4)


def test_what_adamw_has_trained_and_float32_rows_are_exact_too():
    rows, labels = make_classification(200, 5, n_informative=5, n_redundant=0, random_state=0)
    labels[::2] = -1
    model = ISDAClassifier(0.5, C=1.0, unlabelled=-1, consistency=1.0, epochs=2, random_state=0).fit(rows, labels)
    linear = model.to_logistic_regression()
    np.testing.assert_allclose(linear.predict_proba(rows), model.predict_proba(rows), rtol=0, atol=1e-6)
    single = ISDAClassifier(1.0, C=1.0).fit(X.astype(np.float32), Y)
    # The logits of float32 rows round at 2^-24 of their size, about 100.
    np.testing.assert_allclose(single.to_logistic_regression().predict_proba(X), single.predict_proba(X), atol=1e-4)


def test_other_estimators_take_it():
    linear = ISDAClassifier(1.0, C=1.0).fit(X, Y).to_logistic_regression()
    assert CalibratedClassifierCV(FrozenEstimator(linear)).fit(X, Y).score(X, Y) > 0.9
    before = linear.coef_.copy()
    model = ISDAClassifier(1.0, C=1.0).fit(X, Y)
    model.to_logistic_regression().coef_ += 1
    np.testing.assert_array_equal(model.to_logistic_regression().coef_, before)


def test_a_network_has_none():
    model = ISDAClassifier(0.5, C=1.0, hidden=(4,), epochs=1, random_state=0).fit(X, Y)
    with pytest.raises(ValueError, match=r"needs a linear classifier, got hidden=\(4,\)"):
        model.to_logistic_regression()
