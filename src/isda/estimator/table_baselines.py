"""What simpler classifiers reach on the same rows: the majority class and logistic regression; confusion matrices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from isda.lab.tasks.common.evaluation import Tally

MIN_PROBABILITY = 1e-12
"""Lower bound of probabilities in the likelihood."""
FOLDS = 5
MAX_CLASSES_SHOWN = 20
"""Of the confusion matrix as text; of more classes the most frequent confusions are listed."""
CONFUSIONS_SHOWN = 10
ISDA, LOGISTIC, MAJORITY = "isda", "logistic regression", "majority class"


def probability_measures(probabilities: NDArray[np.float64], labels: NDArray[np.int64]) -> dict[str, float]:
    """Error and expected calibration error (15 bins) in percent, and the mean log-likelihood of the true classes.

    Probabilities are (N, C), labels (N,) in 0..C-1.

    Example:
        >>> measures = probability_measures(np.array([[0.5, 0.5], [0.25, 0.75]]), np.array([0, 1]))
        >>> measures["log_likelihood"]  # mean of log 0.5 and log 0.75
        -0.490...
    """
    tally = Tally(probabilities.shape[1])
    floored = np.maximum(np.asarray(probabilities, dtype=np.float64), MIN_PROBABILITY)
    tally.add(torch.from_numpy(floored).log(), torch.from_numpy(np.asarray(labels, dtype=np.int64)))
    measures = tally.measures()
    return {"error": measures["error"], "log_likelihood": -measures["nll"], "calibration": measures["calibration"]}


def class_folds(labels: NDArray[np.int64], folds: int, seed: int) -> NDArray[np.int64]:
    """(N,) the fold of each row, the rows of each class spread over all folds; -1 for the only row of a class.

    Every class is then in the training rows of every fold.

    Example:
        >>> class_folds(np.array([0, 0, 0, 0, 1, 1, 2]), 2, seed=0)[4:].tolist() in ([0, 1, -1], [1, 0, -1])
        True
    """
    chance = np.random.default_rng(seed)
    assigned = np.full(len(labels), -1)
    for label in np.unique(labels):
        rows = chance.permutation(np.flatnonzero(labels == label))
        if len(rows) > 1:
            assigned[rows] = (np.arange(len(rows)) + chance.integers(folds)) % folds
    return assigned


def fixed_settings(fitted: Any) -> dict[str, Any]:
    """The settings that a fit has used, as parameters of another one."""
    return {name: getattr(fitted, f"{name}_") for name in ("lambda_0", "C", "scale", "standardize")}


def compare_classifiers(
    fitted: Any, features: NDArray[np.float64], names: NDArray[np.str_], seed: int
) -> tuple[dict[str, Any], dict[str, dict[str, float]]]:
    """Fit the simpler classifiers and cross-validate all three.

    Logistic regression is ISDAClassifier with lambda_0=0, scale=1 and no offset; its C is chosen as that of ``fitted``.
    Each fold is fitted with the settings that were chosen on all rows.

    Args:
        fitted: an ISDAClassifier, fitted to the rows.
        features: (N, A) of the training rows.
        names: (N,) of their classes.
        seed: of the folds.

    Returns:
        The fitted classifiers by name; and of each the cross-validated error and log-likelihood (5 folds).
    """
    from sklearn.base import clone
    from sklearn.dummy import DummyClassifier

    plain: dict[str, Any] = {"lambda_0": 0.0, "scale": 1.0, "offset": None}
    models = {
        MAJORITY: DummyClassifier(strategy="prior").fit(features, names),
        LOGISTIC: clone(fitted).set_params(**plain).fit(features, names),
        ISDA: fitted,
    }
    labels = np.searchsorted(fitted.classes_, names)
    assigned = class_folds(labels, min(FOLDS, len(names)), seed)
    measures: dict[str, dict[str, float]] = {}
    for name, model in models.items():
        settings = {} if name == MAJORITY else fixed_settings(model)
        parts = [
            (clone(model).set_params(**settings).fit(features[train], names[train]).predict_proba(features[test]), test)
            for train, test in _splits(assigned)
        ]
        if parts:
            probabilities = np.concatenate([likely for likely, _ in parts])
            tested = np.concatenate([labels[test] for _, test in parts])
            measures[name] = probability_measures(probabilities, tested)
    return models, measures


def _splits(assigned: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.bool_], NDArray[np.bool_]]]:
    for fold in np.unique(assigned[assigned >= 0]):
        yield assigned != fold, assigned == fold


def confusion_matrix(labels: NDArray[np.int64], predicted: NDArray[np.int64], classes: int) -> list[list[int]]:
    """How many rows of each class (rows) were predicted as each class (columns).

    Example:
        >>> confusion_matrix(np.array([0, 0, 1]), np.array([0, 1, 1]), 2)
        [[1, 1], [0, 1]]
    """
    counts = np.bincount(labels * classes + predicted, minlength=classes * classes)
    return [[int(count) for count in row] for row in counts.reshape(classes, classes)]


def confusion_text(classes: Sequence[str], matrix: Sequence[Sequence[int]]) -> list[str]:
    """The confusion matrix as lines of text; of many classes the most frequent confusions."""
    if len(classes) > MAX_CLASSES_SHOWN:
        pairs = [
            (count, classes[truth], classes[answer])
            for truth, row in enumerate(matrix)
            for answer, count in enumerate(row)
            if count and truth != answer
        ]
        first = sorted(pairs, key=lambda pair: -pair[0])[:CONFUSIONS_SHOWN]
        return [
            "most frequent confusions:",
            *(f"{count:>6} {truth} predicted as {answer}" for count, truth, answer in first),
        ]
    width = max(len("predicted"), *(len(name) for name in classes))
    cell = max(5, *(len(name) + 1 for name in classes))
    head = f"  {'class':{width}}" + "".join(f"{name:>{cell}}" for name in classes)
    rows = [
        f"  {name:{width}}" + "".join(f"{count:>{cell}}" for count in row)
        for name, row in zip(classes, matrix, strict=True)
    ]
    return ["confusion matrix: rows are classes, columns predictions", head, *rows]


def comparison_text(
    crossed: Mapping[str, Mapping[str, float]], tested: Mapping[str, Mapping[str, float]], kind: str
) -> list[str]:
    """The figures of the classifiers as a table: cross-validated, and on test rows where these have labels."""
    groups = {"cross-validated": crossed, f"{kind} rows": tested}
    shown = {title: figures for title, figures in groups.items() if figures}
    columns = {"error": "error, %", "log_likelihood": "log-likelihood", "calibration": "calibration, %"}
    names = list(next(iter(shown.values()), {}))
    width, cell = 21, 16
    lines = [" " * width + "".join(f"{title:>{cell * len(columns)}}" for title in shown)]
    lines.append(" " * width + "".join(f"{text:>{cell}}" for _ in shown for text in columns.values()))
    for name in names:
        cells = [f"{figures[name][key]:{cell}.3f}" for figures in shown.values() for key in columns]
        lines.append(f"  {name:{width - 2}}" + "".join(cells))
    return lines if shown else []
