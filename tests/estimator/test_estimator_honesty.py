"""Cross-validation that chooses lambda_0 and C does not know what is held out."""

import numpy as np
import pytest

from isda import ISDAClassifier


@pytest.mark.parametrize("covariance", ["within", "full"])
def test_labels_drawn_by_lot_are_not_predicted(covariance):
    """With fewer rows than features every fold is fitted without error; what is held out must stay a guess."""
    chance = np.random.default_rng(0)
    rows, labels = chance.normal(size=(60, 150)), np.arange(60) % 3
    found = ISDAClassifier(covariance=covariance).fit(rows, labels).cv_results_["mean_test_score"]
    assert found.max() < -0.97 * np.log(3)
