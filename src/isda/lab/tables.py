"""Tables and files of embeddings for `isda classify`: read by pandas, made numeric by skrub, classified, predicted."""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.dummy import DummyClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegressionCV
from sklearn.model_selection import StratifiedKFold, cross_val_predict, train_test_split
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from skrub import TableVectorizer

from isda import ISDAClassifier
from isda.lab.choices import did_you_mean
from isda.lab.data.npz import open_npz
from isda.lab.embeddings import probability_measures
from isda.lab.files import atomic_write, check_is_file, check_regular_file

FOLDS = 5
ISDA, LOGISTIC, MAJORITY = "isda", "logistic regression", "majority class"
FORMULA_PREFIXES = ("=", "+", "-", "@", "\t", "\r")
"""Spreadsheets run text that begins like this."""
TRUSTED = ("isda", "numpy", "pandas", "sklearn", "skrub", "builtins", "collections")
"""Packages whose types a model file may hold."""
MAX_MODEL_BYTES = 2**28


class Table(NamedTuple):
    """Features, labels ("" where there is none), and columns that identify rows."""

    features: pd.DataFrame
    labels: pd.Series[str]
    ids: pd.DataFrame
    path: Path

    @property
    def labelled(self) -> Table:
        """The rows with a label."""
        known = self.labels != ""
        return Table(self.features[known], self.labels[known], self.ids[known], self.path)


def read_tables(
    path: Path, label: str | None = None, ids: Sequence[str] = (), ignore: Sequence[str] = (), like: Any = None
) -> list[Table]:
    """The rows of a table, or the training and test rows of a file of embeddings.

    Args:
        path: .csv, .tsv, .parquet, or .npz with x_train, y_train and optionally x_test, y_test, classes.
        label: the column of labels; by default "label", else the last.
        ids: columns that identify rows; "id" is one by default.
        ignore: columns that are left out.
        like: the names of the features of another table, which are taken in its order; others are left out.
    """
    check_is_file(path)
    if path.suffix == ".npz":
        return read_archive(path)
    frame = read_frame(path)
    columns = list(frame.columns)
    for name in (*ignore, *ids, *([label] if label is not None and like is None else [])):
        if name not in columns:
            raise ValueError(f"{path} has no column {name!r}{did_you_mean(name, columns)}; it has {', '.join(columns)}")
    frame = frame.drop(columns=list(ignore))
    if label is None:
        label = "label" if "label" in frame or like is not None else str(frame.columns[-1])
    labels = frame.pop(label) if label in frame else pd.Series("", frame.index)
    kept = list(dict.fromkeys([*ids, *(name for name in frame.columns if name.casefold() == "id")]))
    identifiers, features = frame[kept], frame.drop(columns=kept)
    if like is not None:
        missing = [name for name in like if name not in features]
        if missing:
            raise ValueError(f"{path} must have the columns of the first table, it has no {missing[0]!r}")
        features = features[list(like)]
    if features.shape[1] == 0:
        raise ValueError(f"{path} must have a column of features beside {label!r}, got {', '.join(columns)}")
    # A column of whole numbers with gaps is read as floats: its labels are "1", not "1.0".
    labels = labels.convert_dtypes().astype(object)
    words = labels.map(str, na_action="ignore").fillna("").astype(str).str.strip()
    return [Table(features, words, identifiers, path)]


def read_frame(path: Path) -> pd.DataFrame:
    """A table with a header line; ValueError in one sentence."""
    try:
        if path.suffix == ".parquet":
            frame = pd.read_parquet(path)
        else:
            frame = pd.read_csv(path, sep=None, engine="python", encoding="utf-8-sig")
    except (OSError, ValueError, csv.Error, ImportError) as error:
        raise ValueError(f"{path} cannot be read as a table: {error}") from error
    frame.columns = frame.columns.map(str)
    repeated = frame.columns[frame.columns.duplicated()]
    if len(repeated) or not len(frame):
        what = f"got {repeated[0]!r} twice" if len(repeated) else "got no row below its header"
        raise ValueError(f"{path} must have rows and different names of columns, {what}")
    # "9.5%" is a number.
    for name in frame.columns[[not pd.api.types.is_numeric_dtype(kind) for kind in frame.dtypes]]:
        column = frame[name].dropna()
        if len(column) and column.map(lambda cell: isinstance(cell, str) and cell.strip().endswith("%")).all():
            numbers = pd.to_numeric(column.str.strip().str.rstrip("%"), errors="coerce")
            if numbers.notna().all():
                frame[name] = numbers.reindex(frame.index)
    return frame


def read_archive(path: Path) -> list[Table]:
    """Training rows and, if there are any, test rows of a file of embeddings; nothing is unpickled."""
    tables = []
    with open_npz(path) as archive:
        for part in ("train", "test"):
            if f"x_{part}" not in archive and part == "test":
                break
            if f"x_{part}" not in archive or f"y_{part}" not in archive:
                raise ValueError(f"it must hold x_{part} and y_{part}, it holds {', '.join(archive)}")
            rows, labels = archive[f"x_{part}"], archive[f"y_{part}"]
            if rows.ndim != 2 or rows.dtype.kind not in "fiu" or labels.shape != rows.shape[:1]:
                raise ValueError(f"x_{part} must be numbers (N, A) and y_{part} labels (N,), got {rows.shape}")
            names = labels.astype(str)
            if "classes" in archive and labels.dtype.kind in "iu":
                classes = archive["classes"].astype(str)
                if labels.max() >= len(classes):
                    raise ValueError(
                        f"y_{part} must be below {len(classes)}, the number of classes, got {labels.max()}"
                    )
                names = np.where(labels < 0, "", classes[labels])
            frame = pd.DataFrame(rows.astype(np.float64)).rename(columns=str)
            tables.append(Table(frame, pd.Series(names), pd.DataFrame(index=frame.index), path))
    return tables


def numeric(classifier: Any) -> Pipeline:
    """A pipeline from any columns: categories, dates and texts become numbers, missing values are filled and marked."""
    return make_pipeline(TableVectorizer(), SimpleImputer(add_indicator=True, keep_empty_features=True), classifier)


class Result(NamedTuple):
    """A fitted pipeline, the measures of each classifier, and the confusion matrix of the first."""

    model: Pipeline
    crossed: dict[str, dict[str, float]]
    tested: dict[str, dict[str, float]]
    confusion: pd.DataFrame | None
    rows: int


def classify(train: Table, test: Table | None, estimator: ISDAClassifier, split: float, seed: int) -> Result:
    """Fit, cross-validate beside simpler classifiers, and judge by test rows, or by a share of each class."""
    known = train.labelled
    sizes = known.labels.value_counts()
    if len(sizes) < 2:
        raise ValueError(f"{train.path} must have labelled rows of two classes, got {', '.join(sizes.index) or 'none'}")
    if len(sizes) > len(known.labels) / 2:
        raise ValueError(
            f"{train.path} must have several rows of each class, got {len(sizes)} labels in {len(known.labels)} rows; "
            "--label NAME names the column of labels"
        )
    features, labels = known.features, known.labels
    if test is not None:
        held_features, held_labels = test.labelled.features, test.labelled.labels
        unknown = sorted(set(held_labels) - set(labels))
        if unknown:
            raise ValueError(f"{test.path} must have classes of {train.path}, got {unknown[0]!r}")
    else:
        common = labels.map(sizes) > 1
        _, held = train_test_split(
            labels.index[common], test_size=split, random_state=seed, stratify=labels[common].to_numpy()
        )
        held_features, held_labels = features.loc[held], labels.loc[held]
        chosen = labels.index.difference(held, sort=False)
        features, labels = features.loc[chosen], labels.loc[chosen]
    plain = make_pipeline(StandardScaler(), LogisticRegressionCV(max_iter=1000, scoring="neg_log_loss"))
    models = {
        ISDA: numeric(estimator),
        LOGISTIC: numeric(plain),
        MAJORITY: numeric(DummyClassifier(strategy="prior")),
    }
    folds = StratifiedKFold(max(2, min(FOLDS, int(labels.value_counts().min()))), shuffle=True, random_state=seed)
    crossed: dict[str, dict[str, float]] = {}
    tested: dict[str, dict[str, float]] = {}
    confusion = None
    if labels.value_counts().min() < 2:
        models.pop(LOGISTIC)
    for name, model in models.items():
        if labels.value_counts().min() > 1:
            likely = cross_val_predict(clone(model), features, labels, cv=folds, method="predict_proba")
            crossed[name] = probability_measures(likely, np.unique(labels, return_inverse=True)[1])
        model.fit(features, labels)
        if len(held_labels):
            tested[name], matrix = judge(model, held_features, held_labels)
            confusion = matrix if name == ISDA else confusion
    model = models[ISDA] if test is not None else clone(models[ISDA]).fit(known.features, known.labels)
    return Result(model, crossed, tested, confusion, len(labels))


def judge(model: Pipeline, features: pd.DataFrame, labels: pd.Series[str]) -> tuple[dict[str, float], pd.DataFrame]:
    """Measures and confusion matrix (rows: labels) of a fitted model on labelled rows."""
    likely = model.predict_proba(features)
    truth = np.searchsorted(model.classes_, labels)
    counts = np.zeros((len(model.classes_),) * 2, dtype=int)
    np.add.at(counts, (truth, likely.argmax(1)), 1)
    return probability_measures(likely, truth), pd.DataFrame(counts, model.classes_, model.classes_)


def write_predictions(path: Path, model: Pipeline, tables: Sequence[Table], *, every: bool) -> None:
    """Class and probability of the rows without a label, or of every row, as CSV."""
    parts = []
    for table in tables:
        chosen = table.labels.to_numpy() == "" if not every else np.ones(len(table.labels), dtype=bool)
        if chosen.any():
            likely = model.predict_proba(table.features[chosen])
            part = table.ids[chosen].copy()
            part.insert(0, "row", np.flatnonzero(chosen) + 1)
            part["prediction"] = model.classes_[likely.argmax(1)]
            part["probability"] = likely.max(1).round(6)
            parts.append(part)
    if not parts:
        raise ValueError(f"predictions are of rows without a label, {tables[0].path} has none")
    frame = pd.concat(parts)
    for name in frame.select_dtypes(exclude="number"):
        frame[name] = frame[name].map(lambda cell: f"'{cell}" if str(cell).startswith(FORMULA_PREFIXES) else cell)
    with atomic_write(path) as unfinished:
        frame.to_csv(unfinished, index=False)


def save_model(model: Pipeline, path: Path) -> None:
    """Write a fitted pipeline as a skops file."""
    from skops.io import dump

    with atomic_write(path) as unfinished, unfinished.open("wb") as file:
        dump(model, file)


def load_model(path: Path) -> Pipeline:
    """Read a file of `save_model`; nothing outside of known packages is made, and nothing larger than the file says."""
    from skops.io import get_untrusted_types, load

    check_is_file(path)
    check_regular_file(path)
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(member.file_size for member in archive.infolist()) > MAX_MODEL_BYTES:
                raise ValueError(f"it would take more than {MAX_MODEL_BYTES / 1e6:.0f} MB")
            for member in archive.infolist():
                if member.filename.endswith(".npy"):
                    check_header(archive, member)
        types = get_untrusted_types(file=path)
        foreign = [name for name in types if name.split(".")[0] not in TRUSTED]
        if foreign:
            raise ValueError(f"it holds {foreign[0]}")
        model = load(path, trusted=types)
    except Exception as error:  # a damaged file may raise anything
        raise ValueError(f"{path} must be a model saved by isda classify --save, got: {error}") from error
    if not isinstance(model, Pipeline) or not isinstance(model[-1], ISDAClassifier):
        raise ValueError(f"{path} must be a model saved by isda classify --save, got {type(model).__name__}")
    return model


def check_header(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    """Raise ValueError for an array whose header says more than its member holds."""
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, kind = read(file)
    if kind.hasobject or kind.itemsize * np.prod(shape, dtype=float) > member.file_size:
        raise ValueError(f"{member.filename} is damaged")
