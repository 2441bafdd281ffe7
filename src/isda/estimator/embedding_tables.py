"""Fit and evaluate a classifier on tables of features, and predict the unlabelled rows."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from isda._utils.checks import largest_feature
from isda.data.splits import hold_out
from isda.estimator.embedding_files import FeatureRows, is_number, read_csv_rows, read_npz_rows
from isda.tasks.common.evaluation import Tally


@dataclass(frozen=True)
class TableSplit:
    """Training rows, test rows and unlabelled rows."""

    train: FeatureRows
    test: FeatureRows
    unlabelled: tuple[FeatureRows, ...]
    """Of each file or part."""
    held_out: bool
    """Whether ``test`` was split off the training rows."""


def read_tables(
    path: Path,
    test: Path | None = None,
    *,
    split: float = 0.2,
    seed: int = 0,
    label: str | None = None,
    ignore: Sequence[str] = (),
) -> TableSplit:
    """Read a file of embeddings (.npz) or a table (.csv), and optionally a second one with test rows.

    Args:
        path: of the file.
        test: the file of test rows; by default the test part of the first, else a share of its labelled rows is held
            out. Columns of two tables are matched by name.
        split: the share of each class that is held out.
        seed: of the choice of held-out rows.
        label: the column of labels of a table.
        ignore: columns of a table that are neither label nor feature.

    Raises:
        FileNotFoundError: a file is not there.
        ValueError: a file is damaged or of another kind, has too few labels, or the two files do not match.
    """
    if not 0 < split < 1:
        raise ValueError(f"split must lie strictly between 0 and 1, got {split}")
    rows, own = _read_table(path, label, ignore)
    if test is not None:
        first, second = _read_table(test, label, ignore, rows)
        own = first if second is None else second
    for part in (rows, own):
        if part is not None:
            _check_magnitudes(part)
    labelled = rows.take(rows.labelled)
    if len(np.unique(labelled.names)) < 2:
        names = np.unique(labelled.names).tolist()
        got = f"{len(labelled)} of {', '.join(map(repr, names))}" if names else "none"
        raise ValueError(f"{path} must have labelled rows of at least two classes, got {got}")
    if own is None:
        train_rows, test_rows = _held_out(labelled, split, seed)
        return TableSplit(train_rows, test_rows, (rows.take(~rows.labelled),), held_out=True)
    _check_test_rows(labelled, own)
    return TableSplit(labelled, own.take(own.labelled), tuple(r.take(~r.labelled) for r in (rows, own)), held_out=False)


def _read_table(
    path: Path, label: str | None, ignore: Sequence[str], like: FeatureRows | None = None
) -> tuple[FeatureRows, FeatureRows | None]:
    if path.suffix.lower() == ".npz":
        if label is not None or ignore:
            raise ValueError(f"label and ignore name columns of a table, got the file of embeddings {path}")
        return read_npz_rows(path)
    return read_csv_rows(path, label, ignore, like), None


def _check_magnitudes(rows: FeatureRows) -> None:
    """Raise a ValueError for NaN or infinite features, or features whose squares overflow."""
    bad = int((~np.isfinite(rows.features).all(1)).sum())
    if bad:
        raise ValueError(f"features of {rows.source} must be finite, got {bad} rows with NaN or infinite features")
    below = largest_feature(torch.float64)
    large = np.flatnonzero(np.abs(rows.features).max(1) >= below)
    if len(large):
        raise ValueError(
            f"features of {rows.source} must be smaller than {below:.2g} in magnitude, or their squares overflow, got "
            f"{np.abs(rows.features[large[0]]).max():.2g} in row {rows.row_numbers[large[0]]}; divide the feature by a "
            "constant, or leave it out"
        )


def _held_out(labelled: FeatureRows, split: float, seed: int) -> tuple[FeatureRows, FeatureRows]:
    """Split a share of each class off the labelled rows; the only row of a class stays in the training rows."""
    _, labels, counts = np.unique(labelled.names, return_inverse=True, return_counts=True)
    several = np.flatnonzero(counts[labels] > 1)
    size = round(split * len(several))
    if not 0 < size < len(several):
        raise ValueError(f"split must leave training rows and test rows, got {split} of {len(several)} rows")
    held_out = several[hold_out(torch.from_numpy(labels[several].astype(np.int64)), size, seed).held_out.numpy()]
    train = labelled.take(np.setdiff1d(np.arange(len(labels)), held_out))
    lost = sorted(set(labelled.names.tolist()) - set(train.names.tolist()))
    if lost:
        raise ValueError(f"split must leave training rows of every class, got {split}, which leaves no {lost[0]!r}")
    return train, labelled.take(held_out)


def _check_test_rows(train: FeatureRows, test: FeatureRows) -> None:
    if test.features.shape[1] != train.features.shape[1]:
        raise ValueError(
            f"test must have the {train.features.shape[1]} features of {train.source}, got {test.features.shape[1]} "
            f"in {test.source}"
        )
    unknown = sorted(set(test.names[test.labelled].tolist()) - set(train.names.tolist()))
    if unknown:
        raise ValueError(f"test must have classes of {train.source}, got {unknown[0]!r} in {test.source}")


MIN_PROBABILITY = 1e-12
"""Lower bound of probabilities in the likelihood."""


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


FORMULA_PREFIXES = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True)
class TableClassification:
    """A fitted classifier and its evaluation."""

    model: Any
    """Fitted to all labelled rows, except those of a separate test part."""
    measures: dict[str, float] | None
    """Error, log-likelihood and calibration on the test rows; None if these have no labels."""
    tables: TableSplit
    seconds: float

    def record(self, file: Path) -> dict[str, Any]:
        """As plain values."""
        return {
            "file": str(file),
            "rows": len(self.tables.train),
            "features": self.tables.train.features.shape[1],
            "classes": np.asarray(self.model.classes_).tolist(),
            "judged_by": len(self.tables.test),
            "held_out": self.tables.held_out,
            **(self.measures or {}),
            "lambda_0": float(self.model.lambda_0_),
            "C": float(self.model.C_),
            "scale": float(self.model.scale_),
            "standardize": self.model.standardize_,
            "unlabelled": sum(map(len, self.tables.unlabelled)),
            "seconds": self.seconds,
        }

    def summary(self, file: Path) -> str:
        """As text."""
        record, kind = self.record(file), "held-out" if self.tables.held_out else "test"
        lines = [
            f"{file}: trained on {record['rows']} rows of {record['features']} features, {len(record['classes'])} "
            f"classes, {self.seconds:.1f} s; evaluated on {record['judged_by']} {kind} rows"
        ]
        if self.measures is not None:
            names = {"error": "error, %", "log_likelihood": "log-likelihood", "calibration": "calibration error, %"}
            lines += [f"{heading:>24} {self.measures[name]:9.3f}" for name, heading in names.items()]
        lines += [f"{name:>24} {record[name]:9.4g}" for name in ("lambda_0", "C", "scale")]
        lines.append(f"{'standardize':>24} {record['standardize']!s:>9}")
        return "\n".join(lines)


def classify_tables(tables: TableSplit, model: Any) -> TableClassification:
    """Fit and evaluate a classifier; if the test rows were held out, fit it again with them to predict.

    Args:
        tables: the rows.
        model: an estimator of scikit-learn's interface with settings ``lambda_0``, ``C``, ``scale`` and
            ``standardize``, and fitted attributes of these names with ``_`` at the end. It is not changed.
    """
    from sklearn.base import clone

    began = time.monotonic()
    fitted = clone(model).fit(tables.train.features, tables.train.names)
    measures = None
    if len(tables.test):
        labels = np.searchsorted(fitted.classes_, tables.test.names)
        measures = probability_measures(fitted.predict_proba(tables.test.features), labels)
    if tables.held_out and any(map(len, tables.unlabelled)):
        # With the settings that were evaluated.
        chosen = {name: getattr(fitted, f"{name}_") for name in ("lambda_0", "C", "scale", "standardize")}
        final = clone(model).set_params(**chosen)
        both = (tables.train, tables.test)
        fitted = final.fit(
            np.concatenate([rows.features for rows in both]), np.concatenate([rows.names for rows in both])
        )
    return TableClassification(fitted, measures, tables, time.monotonic() - began)


def prediction_table(result: TableClassification, tables: TableSplit) -> str:
    """The predicted class of every unlabelled row and its probability, as comma-separated values.

    An apostrophe is put before names that a spreadsheet would take for a formula.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["file", "row", "prediction", "probability"])
    for rows in tables.unlabelled:
        if len(rows):
            writer.writerows(_predictions(result.model, rows))
    return text.getvalue()


def _escape_formula(text: str) -> str:
    """Spreadsheets run text that begins with = + - @, a tab or a carriage return, unless it is a number."""
    return f"'{text}" if text.startswith(FORMULA_PREFIXES) and not is_number(text) else text


def _predictions(model: Any, rows: FeatureRows) -> list[tuple[str, int, str, str]]:
    probabilities: NDArray[np.float64] = model.predict_proba(rows.features)
    best = probabilities.argmax(1)
    names = np.asarray(model.classes_)[best]
    likely = probabilities[np.arange(len(best)), best]
    return [
        (_escape_formula(rows.source), int(number), _escape_formula(str(name)), f"{p:.6f}")
        for number, name, p in zip(rows.row_numbers, names, likely, strict=True)
    ]
