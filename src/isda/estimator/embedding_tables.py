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
    """Rows by what they are for."""

    learnt: FeatureRows
    """Labelled, to learn from."""
    judged: FeatureRows
    """Labelled, to judge by."""
    asked: tuple[FeatureRows, ...]
    """Unlabelled, of each file or part."""
    held_out: bool
    """Whether ``judged`` was split off the rows to learn from."""


def read_tables(
    path: Path,
    test: Path | None = None,
    *,
    split: float = 0.2,
    seed: int = 0,
    label: str | None = None,
    ignore: Sequence[str] = (),
) -> TableSplit:
    """Read a file of embeddings (.npz) or a table (.csv), and perhaps a second one to judge by.

    Args:
        path: of the file.
        test: another one, to judge by; by default the test part of the first, else a share of its labelled rows.
            Columns of two tables are matched by name.
        split: that share, of each class.
        seed: which rows these are.
        label: the column of labels of a table.
        ignore: columns of a table that are neither label nor feature.

    Raises:
        FileNotFoundError: a file is not there.
        ValueError: a file is damaged or holds something else, has too few labels, or the two do not fit together.
    """
    if not 0 < split < 1:
        raise ValueError(f"split must lie strictly between 0 and 1, got {split}")
    rows, own = _read_table(path, label, ignore)
    if test is not None:
        first, second = _read_table(test, label, ignore, rows)
        own = first if second is None else second
    for part in (rows, own):
        _check_size(part)
    labelled = rows.take(rows.labelled)
    if len(np.unique(labelled.names)) < 2:
        raise ValueError(f"{path} must have labelled rows of at least two classes, got {_told(labelled)}")
    if own is None:
        learnt, judged = _held_out(labelled, split, seed)
        return TableSplit(learnt, judged, (rows.take(~rows.labelled),), held_out=True)
    _check_fit(labelled, own)
    return TableSplit(labelled, own.take(own.labelled), tuple(r.take(~r.labelled) for r in (rows, own)), held_out=False)


def _read_table(
    path: Path, label: str | None, ignore: Sequence[str], like: FeatureRows | None = None
) -> tuple[FeatureRows, FeatureRows | None]:
    if path.suffix.lower() == ".npz":
        if label is not None or ignore:
            raise ValueError(f"label and ignore name columns of a table, got the file of embeddings {path}")
        return read_npz_rows(path)
    return read_csv_rows(path, label, ignore, like), None


def _check_size(rows: FeatureRows | None) -> None:
    """Raise a ValueError for features that are not finite, or whose squares are not."""
    if rows is None:
        return
    broken = int((~np.isfinite(rows.features).all(1)).sum())
    if broken:
        raise ValueError(f"features of {rows.source} must be finite, got {broken} rows whose are not")
    below = largest_feature(torch.float64)
    large = np.flatnonzero(np.abs(rows.features).max(1) >= below)
    if len(large):
        raise ValueError(
            f"features of {rows.source} must be smaller than {below:.2g} in magnitude, or their squares overflow, got "
            f"{np.abs(rows.features[large[0]]).max():.2g} in row {rows.row_numbers[large[0]]}; divide the feature by a "
            "constant, or leave it out"
        )


def _told(rows: FeatureRows) -> str:
    names = np.unique(rows.names).tolist()
    return f"{len(rows)} of {', '.join(map(repr, names))}" if names else "none"


def _held_out(labelled: FeatureRows, split: float, seed: int) -> tuple[FeatureRows, FeatureRows]:
    """A share of each class; the only row of a class stays, to be learnt from."""
    _, labels, counts = np.unique(labelled.names, return_inverse=True, return_counts=True)
    several = np.flatnonzero(counts[labels] > 1)
    size = round(split * len(several))
    if not 0 < size < len(several):
        raise ValueError(f"split must leave rows to learn from and to judge by, got {split} of {len(several)} rows")
    held_out = several[hold_out(torch.from_numpy(labels[several].astype(np.int64)), size, seed).held_out.numpy()]
    learnt, judged = labelled.take(np.setdiff1d(np.arange(len(labels)), held_out)), labelled.take(held_out)
    lost = sorted(set(labelled.names.tolist()) - set(learnt.names.tolist()))
    if lost:
        raise ValueError(f"split must leave rows of every class to learn from, got {split}: it leaves no {lost[0]!r}")
    return learnt, judged


def _check_fit(learnt: FeatureRows, test: FeatureRows) -> None:
    if test.features.shape[1] != learnt.features.shape[1]:
        raise ValueError(
            f"test must have the {learnt.features.shape[1]} features of {learnt.source}, got {test.features.shape[1]} "
            f"in {test.source}"
        )
    unknown = sorted(set(test.names[test.labelled].tolist()) - set(learnt.names.tolist()))
    if unknown:
        raise ValueError(f"test must have classes of {learnt.source}, got {unknown[0]!r} in {test.source}")


MIN_PROBABILITY = 1e-12
"""What a probability of 0 counts for in the likelihood."""


def probability_measures(probabilities: NDArray[np.float64], labels: NDArray[np.int64]) -> dict[str, float]:
    """Error and expected calibration error (15 bins) in percent, and the mean log-likelihood of the true classes.

    Args:
        probabilities: (N, C).
        labels: (N,) in 0..C-1.

    Example:
        >>> measures(np.array([[0.5, 0.5], [0.25, 0.75]]), np.array([0, 1]))["log_likelihood"]  # log of 0.5 and 0.75
        -0.490...
    """
    tally = Tally(probabilities.shape[1])
    floored = np.maximum(np.asarray(probabilities, dtype=np.float64), MIN_PROBABILITY)
    tally.add(torch.from_numpy(floored).log(), torch.from_numpy(np.asarray(labels, dtype=np.int64)))
    found = tally.measures()
    return {"error": found["error"], "log_likelihood": -found["nll"], "calibration": found["calibration"]}


FORMULA_PREFIXES = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True)
class TableClassification:
    """A fitted classifier and how good it is."""

    model: Any
    """What predicts: fitted to all labelled rows that are not test rows."""
    figures: dict[str, float] | None
    """Error, log-likelihood and calibration on the rows kept apart; None where those have no labels."""
    tables: TableSplit
    seconds: float

    def record(self, file: Path) -> dict[str, Any]:
        """As plain values."""
        return {
            "file": str(file),
            "rows": len(self.tables.learnt),
            "features": self.tables.learnt.features.shape[1],
            "classes": np.asarray(self.model.classes_).tolist(),
            "judged_by": len(self.tables.judged),
            "held_out": self.tables.held_out,
            **(self.figures or {}),
            "lambda_0": float(self.model.lambda_0_),
            "C": float(self.model.C_),
            "scale": float(self.model.scale_),
            "unlabelled": sum(map(len, self.tables.asked)),
            "seconds": self.seconds,
        }

    def told(self, file: Path) -> str:
        """In words."""
        said, kept = self.record(file), "held out" if self.tables.held_out else "for testing"
        lines = [
            f"{file}: learnt from {said['rows']} rows of {said['features']} features, {len(said['classes'])} classes, "
            f"{self.seconds:.1f} s; judged by {said['judged_by']} rows {kept}"
        ]
        if self.figures is not None:
            names = {"error": "error, %", "log_likelihood": "log-likelihood", "calibration": "calibration error, %"}
            lines += [f"{heading:>24} {self.figures[name]:9.3f}" for name, heading in names.items()]
        lines += [f"{name:>24} {said[name]:9.4g}" for name in ("lambda_0", "C", "scale")]
        return "\n".join(lines)


def classify_tables(tables: TableSplit, model: Any) -> TableClassification:
    """Fit a classifier, judge it, and where the rows to judge by were held out, fit it again with them.

    Args:
        tables: the rows.
        model: a classifier of scikit-learn's kind with settings ``lambda_0``, ``C`` and ``scale``, which it may choose,
            then found as ``lambda_0_``, ``C_`` and ``scale_``. It is not changed.
    """
    began = time.monotonic()
    from sklearn.base import clone

    fitted = clone(model).fit(tables.learnt.features, tables.learnt.names)
    figures = None
    if len(tables.judged):
        labels = np.searchsorted(fitted.classes_, tables.judged.names)
        figures = probability_measures(fitted.predict_proba(tables.judged.features), labels)
    if tables.held_out and any(map(len, tables.asked)):
        # The settings stay: choosing them again would take as long, and tell nothing that was judged.
        settled = clone(model).set_params(lambda_0=fitted.lambda_0_, C=fitted.C_, scale=fitted.scale_)
        both = (tables.learnt, tables.judged)
        fitted = settled.fit(
            np.concatenate([rows.features for rows in both]), np.concatenate([rows.names for rows in both])
        )
    return TableClassification(fitted, figures, tables, time.monotonic() - began)


def prediction_table(result: TableClassification, tables: TableSplit) -> str:
    """The predicted class of every unlabelled row and its probability, as text of comma-separated values.

    A name that a spreadsheet would take for a formula gets an apostrophe in front of it.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["file", "row", "prediction", "probability"])
    for rows in tables.asked:
        if len(rows):
            writer.writerows(_predictions(result.model, rows))
    return text.getvalue()


def _escape_formula(text: str) -> str:
    """What begins with = + - @, a tab or a carriage return is run by spreadsheets, unless it is a number."""
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
