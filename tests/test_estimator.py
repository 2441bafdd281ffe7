"""ISDAClassifier behaves like any scikit-learn classifier, and unlabelled rows help it."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits, make_blobs
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from isda import ISDAClassifier


@parametrize_with_checks([ISDAClassifier(epochs=30, random_state=0)])
def test_scikit_learn_contract(estimator, check):
    check(estimator)


def test_works_in_pipelines_and_cross_validation():
    rows, labels = load_digits(return_X_y=True)
    model = make_pipeline(StandardScaler(), ISDAClassifier(epochs=20, random_state=0))
    assert cross_val_score(clone(model), rows, labels, cv=3).mean() > 0.88


def test_unlabelled_rows_move_the_model():
    rows, labels = load_digits(return_X_y=True)
    few = np.full(len(labels), -1)
    rng = np.random.default_rng(0)
    for digit in range(10):
        chosen = rng.choice(np.flatnonzero(labels == digit), 5, replace=False)
        few[chosen] = digit
    hidden = few == -1
    # The labelled rows alone with the same scaling: the only difference is the consistency term.
    without = ISDAClassifier(consistency=0.0, epochs=30, random_state=0).fit(rows, few)
    with_them = ISDAClassifier(consistency=1.0, epochs=30, random_state=0).fit(rows, few)
    assert without.classes_.tolist() == list(range(10))
    assert not np.allclose(without.decision_function(rows), with_them.decision_function(rows))
    assert without.score(rows[hidden], labels[hidden]) > 0.7
    assert with_them.score(rows[hidden], labels[hidden]) > 0.7


def test_same_seed_same_model_and_global_randomness_untouched():
    rows, labels = make_blobs(120, centers=3, random_state=0)
    first = ISDAClassifier(epochs=5, random_state=3).fit(rows, labels)
    second = ISDAClassifier(epochs=5, random_state=3).fit(rows, labels)
    np.testing.assert_array_equal(first.predict_proba(rows), second.predict_proba(rows))


def test_hidden_layers_learn_what_a_line_cannot():
    rng = np.random.default_rng(0)
    rows = rng.uniform(-1, 1, (400, 2))
    labels = (rows[:, 0] * rows[:, 1] > 0).astype(int)
    line = ISDAClassifier(0.1, epochs=60, random_state=0).fit(rows, labels).score(rows, labels)
    network = ISDAClassifier(0.1, hidden=(32,), epochs=60, random_state=0).fit(rows, labels).score(rows, labels)
    assert line < 0.7 < 0.9 < network


def test_plus_minus_one_labels_are_classes():
    rows, labels = make_blobs(60, centers=2, cluster_std=0.3, random_state=0)
    model = ISDAClassifier(epochs=20, random_state=0).fit(rows, 2 * labels - 1)
    assert model.classes_.tolist() == [-1, 1]
    assert model.score(rows, 2 * labels - 1) > 0.95


def test_one_class_is_refused():
    with pytest.raises(ValueError, match="at least two classes"):
        ISDAClassifier().fit(np.zeros((4, 2)), np.zeros(4))
