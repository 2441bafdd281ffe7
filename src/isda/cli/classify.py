"""The command ``isda classify``."""

from pathlib import Path
from typing import Literal

import tyro

from isda.cli.options import JsonFile

__all__ = ["classify"]


def classify(
    file: tyro.conf.Positional[Path],
    *,
    test: Path | None = None,
    split: float = 0.2,
    label: str | None = None,
    ignore: tuple[str, ...] = (),
    lambda_0: str = "auto",
    C: str = "auto",
    covariance: str = "within",
    bound: Literal["jensen", "tilted"] = "jensen",
    offset: str | None = None,
    seed: int = 0,
    predictions: Path | None = None,
    json: JsonFile = None,
) -> None:
    """Learn to classify rows of features, say how well it works, and predict the rows without a label.

    ``isda classify photos.npz`` or ``isda classify table.csv --label species --predictions answers.csv``

    A table has a column for each feature and one for the labels; rows whose label is empty are predicted. A file of
    embeddings is one that `isda embed` has written, or holds x_train, y_train and, if it likes, x_test, y_test and
    classes; rows with the label -1, or with an empty name for a label, are predicted.

    Args:
        file: a file of embeddings (.npz), or a table of numbers (.csv, .tsv).
        test: another such file, to judge by; by default the test part of the first, else a share of its labelled rows.
            Columns of two tables are matched by name.
        split: that share, where there are no test rows.
        label: the column of labels of a table; by default the one called "label", else the last.
        ignore: columns of a table that are neither label nor feature.
        lambda_0: strength of the augmentation; "auto" chooses it by cross-validation, 0 is logistic regression.
        C: of logistic regression, large for a weak penalty of large weights; "auto" chooses it likewise.
        covariance: in which directions rows are moved: one matrix "within" all classes; one for each class, "shrunk"
            towards that, "full" or "diagonal".
        bound: "jensen" (published) or "tilted" (never looser).
        offset: for classes of very different sizes, where small ones matter as much: "logit-adjustment" or "ldam".
        seed: which rows are split off, and which are held out together while settings are chosen.
        predictions: write the predicted class of each row without a label, and its probability, to this file (.csv).
        json: also write the figures to this file as JSON; "-" writes JSON to the standard output and nothing else.
    """
    from isda import ISDAClassifier
    from isda.cli.output import show
    from isda.embeddings.classifying import classified, prediction_table
    from isda.embeddings.tables import read_tables
    from isda.files import write_text
    from isda.plain_text import harmless

    if not 0 <= seed < 2**32:
        raise ValueError(f"seed must be in 0..{2**32 - 1}, got {seed}")
    strength, inverse = _auto_or_number("lambda_0", lambda_0), _auto_or_number("C", C)
    model = ISDAClassifier(strength, inverse, covariance=covariance, bound=bound, offset=offset, random_state=seed)
    tables = read_tables(file, test, split=split, seed=seed, label=label, ignore=ignore)
    if predictions is not None and not any(map(len, tables.asked)):
        raise ValueError(f"predictions are of rows without a label, {file} has none")
    result = classified(tables, model)
    show(result.record(file), json, lambda: print(harmless(result.told(file))))
    if predictions is not None:
        write_text(predictions, prediction_table(result, tables))


def _auto_or_number(name: str, word: str) -> str | float:
    if word == "auto":
        return word
    try:
        return float(word)
    except ValueError:
        raise ValueError(f'{name} must be "auto" or a number, got {word!r}') from None
