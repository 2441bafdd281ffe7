"""The classifiers of benchmarks/problems.py. Each sees standardised rows and chooses its settings by five folds."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.calibration import CalibratedClassifierCV
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegressionCV
from sklearn.metrics import pairwise_distances
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from isda import ISDAClassifier
from isda.classifier import best_scale

__all__ = [
    "CONTROLS",
    "OURS",
    "RIVALS",
    "WAYS",
    "Labels",
    "Matrix",
    "Way",
    "folds",
    "ours",
    "raw_logistic",
    "scaled_discriminant",
    "standardised",
]

Matrix = NDArray[np.float64]
Labels = NDArray[np.int64]
Way = Callable[[Matrix, Labels, Matrix, int], tuple[Matrix, str]]
"""(rows, labels, test rows, seed of the folds) -> (probabilities of the test rows, what was chosen)."""

FOLDS = 5
PENALTIES = np.logspace(-4, 4, 13)
"""Of logistic regression: C."""
SOFTNESS = (0.3, 3.0, 30.0, 300.0)
"""Of the support vector machine: C."""
WIDTHS = (0.1, 0.3, 1.0, 3.0)
"""Of its kernel: gamma times the number of features."""
TINY = 1e-300
"""The least probability whose logarithm is taken."""
NEIGHBOURS = (1, 2, 3, 4, 5, 7, 9, 13)
OURS, OURS_PLAIN = "ISDA", "ISDA, λ0 = 0"


def folds(seed: int) -> StratifiedKFold:
    """The same for every method."""
    return StratifiedKFold(FOLDS, shuffle=True, random_state=seed)


def standardised(rows: Matrix, test: Matrix) -> tuple[Matrix, Matrix]:
    """Mean 0 and standard deviation 1 in every column of the rows."""
    scaler = StandardScaler().fit(rows)
    return scaler.transform(rows), scaler.transform(test)


def logistic(rows: Matrix, labels: Labels, test: Matrix, seed: int) -> tuple[Matrix, str]:
    """LogisticRegressionCV on standardised rows."""
    return raw_logistic(*standardised(rows, test), labels, seed, PENALTIES)


def raw_logistic(
    rows: Matrix, test: Matrix, labels: Labels, seed: int, penalties: NDArray[np.float64]
) -> tuple[Matrix, str]:
    """LogisticRegressionCV on log-likelihood; where rows are few, in the space that they span, which is the same."""
    if rows.shape[0] < rows.shape[1]:
        basis = np.linalg.qr(rows.T)[0]
        rows, test = rows @ basis, test @ basis
    model = LogisticRegressionCV(
        Cs=penalties,
        cv=folds(seed),
        scoring="neg_log_loss",
        max_iter=1000,
        use_legacy_attributes=False,
        l1_ratios=(0.0,),
    ).fit(rows, labels)
    return model.predict_proba(test), json.dumps({"C": float(np.ravel(model.C_)[0])})


def discriminant(rows: Matrix, labels: Labels, test: Matrix, seed: int) -> tuple[Matrix, str]:
    """Linear discriminant analysis, its shrinkage by Ledoit and Wolf's formula: nothing is left to be chosen."""
    rows, test = standardised(rows, test)
    model = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto").fit(rows, labels)
    return model.predict_proba(test), "{}"


def scaled_discriminant(rows: Matrix, labels: Labels, test: Matrix, seed: int) -> tuple[Matrix, str]:
    """The same, with one factor on its logits by the likelihood of held-out rows, as ISDAClassifier has it."""
    held_out = np.zeros((len(rows), int(labels.max()) + 1))
    for learnt, judged in folds(seed).split(rows, labels):
        held_out[judged] = _log(discriminant(rows[learnt], labels[learnt], rows[judged], seed)[0])
    scale = best_scale(held_out.T, labels, np.ones(len(labels)))
    return softmax(scale * _log(discriminant(rows, labels, test, seed)[0]), axis=1), json.dumps({"scale": scale})


def _log(probabilities: Matrix) -> Matrix:
    return np.asarray(np.log(np.maximum(probabilities, TINY)))


def neighbours(rows: Matrix, labels: Labels, test: Matrix, seed: int) -> tuple[Matrix, str]:
    """K nearest neighbours and how they are weighted, by log-likelihood; one vote is shared by all classes.

    Without that vote a class that no neighbour has would get the probability 0, and one mistake the likelihood 0.
    """
    rows, test = standardised(rows, test)
    settings = [(k, weighted) for k in NEIGHBOURS for weighted in (False, True)]
    classes = int(labels.max()) + 1
    scores = np.zeros(len(settings))
    for learnt, judged in folds(seed).split(rows, labels):
        distances = pairwise_distances(rows[judged], rows[learnt])
        for place, (k, weighted) in enumerate(settings):
            likely = _votes(distances, labels[learnt], k, weighted, classes)
            scores[place] += np.log(likely[np.arange(len(judged)), labels[judged]]).sum()
    k, weighted = settings[int(scores.argmax())]
    chosen = json.dumps({"k": k, "weights": "distance" if weighted else "uniform"})
    return _votes(pairwise_distances(test, rows), labels, k, weighted, classes), chosen


def _votes(distances: Matrix, labels: Labels, k: int, weighted: bool, classes: int) -> Matrix:
    """(v_c + 1 / C) / (k + 1), where the votes v of the k nearest rows add up to k."""
    k = min(k, len(labels))
    nearest = np.argpartition(distances, k - 1, axis=1)[:, :k]
    weights = 1 / np.maximum(np.take_along_axis(distances, nearest, 1), 1e-6) if weighted else np.ones(nearest.shape)
    weights = k * weights / weights.sum(1, keepdims=True)
    votes = np.full((len(distances), classes), 1 / classes)
    np.add.at(votes, (np.arange(len(distances))[:, None], labels[nearest]), weights)
    return votes / (k + 1)


def vectors(rows: Matrix, labels: Labels, test: Matrix, seed: int) -> tuple[Matrix, str]:
    """A support vector machine with a Gaussian kernel, C and gamma by accuracy; probabilities by Platt's sigmoids.

    The sigmoids of the classes are fitted to the five folds' decisions, with the chosen settings.
    """
    rows, test = standardised(rows, test)
    squares, best = _squared(rows, rows), (-1.0, 0.0, 0.0)
    for width in WIDTHS:
        search = GridSearchCV(SVC(kernel="precomputed"), {"C": SOFTNESS}, cv=folds(seed), refit=False)
        search.fit(np.exp(-width / rows.shape[1] * squares), labels)
        best = max(best, (float(search.best_score_), -width, -float(search.best_params_["C"])))
    width, softness = -best[1], -best[2]
    model = CalibratedClassifierCV(SVC(kernel="precomputed", C=softness), cv=folds(seed), ensemble=False)
    model.fit(np.exp(-width / rows.shape[1] * squares), labels)
    kernel = np.exp(-width / rows.shape[1] * _squared(test, rows))
    return model.predict_proba(kernel), json.dumps({"C": softness, "gamma": width / rows.shape[1]})


def _squared(first: Matrix, second: Matrix) -> Matrix:
    distances: Matrix = pairwise_distances(first, second) ** 2
    return distances


def ours(lambda_0: float | str, standardize: str = "columns") -> Way:
    """ISDAClassifier with the folds of the others; what is not given has its default."""

    def fitted(rows: Matrix, labels: Labels, test: Matrix, seed: int) -> tuple[Matrix, str]:
        model: Any = ISDAClassifier(lambda_0=lambda_0, standardize=standardize, cv=folds(seed)).fit(rows, labels)
        names = ("lambda_0", "C", "scale", "standardize") if standardize == "auto" else ("lambda_0", "C", "scale")
        return model.predict_proba(test), json.dumps({name: getattr(model, f"{name}_") for name in names})

    return fitted


RIVALS: dict[str, Way] = {
    "logistic regression": logistic,
    "LDA, shrunk": discriminant,
    "nearest neighbours": neighbours,
    "RBF SVM": vectors,
}
CONTROLS: dict[str, Way] = {OURS_PLAIN: ours(0.0), "LDA, shrunk, scaled": scaled_discriminant}
"""What tells how much of the result is due to augmentation and how much to the scale, which these have too."""
WAYS = {OURS: ours("auto"), **RIVALS, **CONTROLS}
