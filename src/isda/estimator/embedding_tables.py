"""Fit and evaluate a classifier on tables of features, and predict the unlabelled rows."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from isda._utils.checks import largest_feature
from isda._utils.files import check_is_file
from isda.estimator.classifier import ISDAClassifier
from isda.estimator.embedding_files import DEFAULT_LABEL_COLUMN, FeatureRows, read_csv_rows, read_npz_rows
from isda.estimator.serialization import load_classifier_file, save_classifier
from isda.estimator.table_baselines import (
    ISDA,
    compare_classifiers,
    comparison_text,
    confusion_matrix,
    confusion_text,
    fixed_settings,
    probability_measures,
)
from isda.estimator.table_columns import TableColumns, is_number, list_columns
from isda.lab.data.splits import hold_out

TABLE_KEY = "table"
"""In the metadata of a saved classifier: the columns of its table."""
MANY_CLASSES, ROWS_PER_CLASS = 20, 5
"""The last column of a table is not taken for labels if it has more values, and fewer rows of each."""


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
    ids: Sequence[str] = (),
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
        ids: columns of a table that identify rows, beside obvious ones.

    Raises:
        FileNotFoundError: a file is not there.
        ValueError: a file is damaged or of another kind, has too few labels, or the two files do not match.
    """
    if not 0 < split < 1:
        raise ValueError(f"split must lie strictly between 0 and 1, got {split}")
    rows, own = _read_table(path, label, ignore, None, ids)
    if test is not None:
        first, second = _read_table(test, label, ignore, rows, ids)
        own = first if second is None else second
    for part in (rows, own):
        if part is not None:
            _check_magnitudes(part)
    labelled = rows.take(rows.labelled)
    if len(np.unique(labelled.names)) < 2:
        names = np.unique(labelled.names).tolist()
        got = f"{len(labelled)} of {', '.join(map(repr, names))}" if names else "none"
        raise ValueError(f"{path} must have labelled rows of at least two classes, got {got}")
    if label is None:
        _check_label_column(labelled)
    if own is None:
        train_rows, test_rows = _held_out(labelled, split, seed)
        return TableSplit(train_rows, test_rows, (rows.take(~rows.labelled),), held_out=True)
    _check_test_rows(labelled, own)
    return TableSplit(labelled, own.take(own.labelled), tuple(r.take(~r.labelled) for r in (rows, own)), held_out=False)


def _read_table(
    path: Path, label: str | None, ignore: Sequence[str], like: FeatureRows | None, ids: Sequence[str]
) -> tuple[FeatureRows, FeatureRows | None]:
    if path.suffix.lower() == ".npz":
        if label is not None or ignore or ids:
            raise ValueError(f"label and ignore name columns of a table, got the file of embeddings {path}")
        return read_npz_rows(path)
    return read_csv_rows(path, label, ignore, like, ids), None


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


def _check_label_column(labelled: FeatureRows) -> None:
    """Raise a ValueError if the last column of a table, which is the label by default, is free text or measurements."""
    table, names = labelled.table, np.unique(labelled.names)
    if table is None or table.label is None or table.label.casefold() == DEFAULT_LABEL_COLUMN:
        return
    if len(names) > MANY_CLASSES and len(labelled) < ROWS_PER_CLASS * len(names):
        others = list_columns([*table.features, *table.ids])
        raise ValueError(
            f"the last column of {labelled.source}, {table.label!r}, has {len(names)} different values in "
            f"{len(labelled)} rows, such as {str(names[0])!r}, too many for classes; name the column of labels with "
            f"--label, one of {others}, or --label {table.label} if these are the classes"
        )


def _held_out(labelled: FeatureRows, split: float, seed: int) -> tuple[FeatureRows, FeatureRows]:
    """Split a share of each class off the labelled rows; the only row of a class stays in the training rows."""
    _, labels, counts = np.unique(labelled.names, return_inverse=True, return_counts=True)
    several = np.flatnonzero(counts[labels] > 1)
    size = round(split * len(several))
    if not len(several):
        raise ValueError(
            f"{labelled.source} must have two rows of a class to hold one out, got {len(labelled)} rows of as many "
            "classes; --test FILE evaluates on other rows, --label names the column of labels of a table"
        )
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


FORMULA_PREFIXES = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True)
class TableClassification:
    """A fitted classifier and its evaluation."""

    model: Any
    """Fitted to all labelled rows, except those of a separate test part."""
    tested: dict[str, dict[str, float]]
    """By classifier: error, log-likelihood and calibration on the test rows; empty if these have no labels."""
    crossed: dict[str, dict[str, float]]
    """By classifier: the same, cross-validated on the training rows; empty for a model that was loaded."""
    confusion: list[list[int]] | None
    """Of the test rows."""
    tables: TableSplit
    seconds: float

    def record(self, file: Path) -> dict[str, Any]:
        """As plain values."""
        table = self.tables.train.table
        return {
            "file": str(file),
            "rows": len(self.tables.train),
            "features": self.model.n_features_in_,
            "classes": np.asarray(self.model.classes_).tolist(),
            "judged_by": len(self.tables.test),
            "held_out": self.tables.held_out,
            **self.tested.get(ISDA, {}),
            "lambda_0": float(self.model.lambda_0_),
            "C": float(self.model.C_),
            "scale": float(self.model.scale_),
            "standardize": self.model.standardize_,
            "unlabelled": sum(map(len, self.tables.unlabelled)),
            "seconds": self.seconds,
            "columns": None if table is None else table.record(),
            "cross_validated": self.crossed,
            "tested": self.tested,
            "confusion": self.confusion,
        }

    def summary(self, file: Path) -> str:
        """As text."""
        record = self.record(file)
        if record["rows"]:
            kind, made = "held-out" if self.tables.held_out else "test", f"trained on {record['rows']} rows of"
        else:
            kind, made = "labelled", f"{record['unlabelled']} rows predicted by a saved classifier of"
        evaluated = f"evaluated on {record['judged_by']} {kind} rows"
        lines = [
            f"{file}: {made} {record['features']} features, {len(record['classes'])} classes, {self.seconds:.1f} s; "
            f"{evaluated if record['judged_by'] else f'no {kind} rows to evaluate on'}"
        ]
        table = self.tables.train.table
        lines += [table.summary()] if table is not None and table.summary() else []
        lines += ["", *comparison_text(self.crossed, self.tested, kind), ""] if self.crossed or self.tested else []
        lines += [f"{name:>24} {record[name]:9.4g}" for name in ("lambda_0", "C", "scale")]
        lines.append(f"{'standardize':>24} {record['standardize']!s:>9}")
        if self.confusion is not None:
            lines += ["", *confusion_text([str(name) for name in record["classes"]], self.confusion)]
        return "\n".join(lines)


def classify_tables(tables: TableSplit, model: Any, seed: int = 0, use_all: bool = False) -> TableClassification:
    """Fit and evaluate a classifier; if the test rows were held out, fit it again with them to predict.

    Args:
        tables: the rows.
        model: an ISDAClassifier, which is not changed.
        seed: of the folds of the cross-validation.
        use_all: fit again with held-out rows even if there are no rows to predict.
    """
    from sklearn.base import clone

    began = time.monotonic()
    features, names = tables.train.features, tables.train.names
    fitted = clone(model).fit(features, names)
    models, crossed = compare_classifiers(fitted, features, names, seed)
    tested, confusion = _test_measures(models, tables.test)
    if tables.held_out and (use_all or any(map(len, tables.unlabelled))):
        # With the settings that were evaluated.
        final = clone(model).set_params(**fixed_settings(fitted))
        both = (tables.train, tables.test)
        fitted = final.fit(
            np.concatenate([rows.features for rows in both]), np.concatenate([rows.names for rows in both])
        )
    return TableClassification(fitted, tested, crossed, confusion, tables, time.monotonic() - began)


def _test_measures(
    models: Mapping[str, Any], test: FeatureRows
) -> tuple[dict[str, dict[str, float]], list[list[int]] | None]:
    """The figures of each classifier on labelled rows, and the confusion matrix of ISDA's."""
    if not len(test):
        return {}, None
    classes = np.asarray(models[ISDA].classes_)
    labels = np.searchsorted(classes, test.names)
    probabilities = {name: model.predict_proba(test.features) for name, model in models.items()}
    measures = {name: probability_measures(likely, labels) for name, likely in probabilities.items()}
    return measures, confusion_matrix(labels, probabilities[ISDA].argmax(1), len(classes))


def save_model(result: TableClassification, path: Path) -> None:
    """Write the classifier and the columns of its table to a safetensors file, which also ISDAClassifier.load reads."""
    table = result.tables.train.table
    save_classifier(result.model, path, {} if table is None else {TABLE_KEY: json.dumps(table.record())})


def apply_model(
    path: Path, file: Path, label: str | None = None, ignore: Sequence[str] = (), ids: Sequence[str] = ()
) -> TableClassification:
    """Evaluate a saved classifier on the labelled rows of a file; all of its rows are then to be predicted.

    Args:
        path: of the classifier, as `save_model` writes it.
        file: the rows, with the columns of the table that it was fitted to, or as many features.
        label: the column of labels.
        ignore: columns that are neither label nor feature.
        ids: columns that identify rows.

    Raises:
        FileNotFoundError: a file is not there.
        ValueError: the file is damaged, or does not fit the classifier.
    """
    began = time.monotonic()
    check_is_file(path)
    model, metadata = load_classifier_file(ISDAClassifier, path)
    record = json.loads(metadata[TABLE_KEY]) if TABLE_KEY in metadata else None
    table = None if record is None else TableColumns.from_record(record)
    if table is not None and ids:
        table = replace(table, ids=tuple(dict.fromkeys([*table.ids, *ids])))
    none = np.empty((0, model.n_features_in_)), np.empty(0, dtype=np.str_), str(path)
    learnt = FeatureRows(*none, table=table)
    rows, own = _read_table(file, label, ignore, learnt if table is not None else None, ids)
    parts = [rows] if own is None else [rows, own]
    for part in parts:
        _check_magnitudes(part)
        if part.features.shape[1] != model.n_features_in_:
            raise ValueError(
                f"{file} must have the {model.n_features_in_} features of {path}, got {part.features.shape[1]}"
            )
    judged = parts[-1].take(parts[-1].labelled)
    unknown = sorted(set(judged.names.tolist()) - set(map(str, model.classes_)))
    if unknown:
        raise ValueError(f"labels of {file} must be classes of {path}, got {unknown[0]!r}")
    tested, confusion = _test_measures({ISDA: model}, judged)
    split = TableSplit(learnt, judged, tuple(parts), held_out=False)
    return TableClassification(model, tested, {}, confusion, split, time.monotonic() - began)


def prediction_table(result: TableClassification, tables: TableSplit) -> str:
    """The predicted class of every unlabelled row and its probability, as comma-separated values.

    Columns that identify rows come before the prediction. An apostrophe is put before names that a spreadsheet would
    take for a formula.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    table = tables.train.table
    ids = () if table is None else table.ids
    writer.writerow(["file", "row", *map(_escape_formula, ids), "prediction", "probability"])
    for rows in tables.unlabelled:
        if len(rows):
            writer.writerows(_predictions(result.model, rows))
    return text.getvalue()


def _escape_formula(text: str) -> str:
    """Spreadsheets run text that begins with = + - @, a tab or a carriage return, unless it is a number."""
    return f"'{text}" if text.startswith(FORMULA_PREFIXES) and not is_number(text) else text


def _predictions(model: Any, rows: FeatureRows) -> list[tuple[str | int, ...]]:
    probabilities: NDArray[np.float64] = model.predict_proba(rows.features)
    best = probabilities.argmax(1)
    names = np.asarray(model.classes_)[best]
    likely = probabilities[np.arange(len(best)), best]
    ids: list[list[str]] = [[]] * len(best) if rows.ids is None else rows.ids.tolist()
    return [
        (_escape_formula(rows.source), int(number), *map(_escape_formula, row), _escape_formula(str(name)), f"{p:.6f}")
        for number, row, name, p in zip(rows.row_numbers, ids, names, likely, strict=True)
    ]
