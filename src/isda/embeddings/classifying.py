"""A classifier on tables: fitted to labelled rows, judged by those kept apart, asked about those without a label."""

from __future__ import annotations

import csv
import io
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from isda.embeddings.csv_files import is_number
from isda.embeddings.measuring import measures
from isda.embeddings.rows import Rows
from isda.embeddings.tables import Tables

__all__ = ["Classified", "classified", "prediction_table"]

FORMULAS = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True)
class Classified:
    """A fitted classifier and how good it is."""

    model: Any
    """What predicts: fitted to all labelled rows that are not test rows."""
    figures: dict[str, float] | None
    """Error, log-likelihood and calibration on the rows kept apart; None where those have no labels."""
    tables: Tables
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


def classified(tables: Tables, model: Any) -> Classified:
    """Fit a classifier, judge it, and where the rows to judge by were held out, fit it again with them.

    Args:
        tables: the rows.
        model: a classifier of scikit-learn's kind with settings ``lambda_0``, ``C`` and ``scale``, which it may choose,
            then found as ``lambda_0_``, ``C_`` and ``scale_``. It is not changed.
    """
    began = time.monotonic()
    fitted = clone(model).fit(tables.learnt.features, tables.learnt.names)
    figures = None
    if len(tables.judged):
        labels = np.searchsorted(fitted.classes_, tables.judged.names)
        figures = measures(fitted.predict_proba(tables.judged.features), labels)
    if tables.held_out and any(map(len, tables.asked)):
        # The settings stay: choosing them again would take as long, and tell nothing that was judged.
        settled = clone(model).set_params(lambda_0=fitted.lambda_0_, C=fitted.C_, scale=fitted.scale_)
        both = (tables.learnt, tables.judged)
        fitted = settled.fit(
            np.concatenate([rows.features for rows in both]), np.concatenate([rows.names for rows in both])
        )
    return Classified(fitted, figures, tables, time.monotonic() - began)


def prediction_table(result: Classified, tables: Tables) -> str:
    """The predicted class of every unlabelled row and its probability, as text of comma-separated values.

    A name that a spreadsheet would take for a formula gets an apostrophe in front of it.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["file", "row", "prediction", "probability"])
    for rows in tables.asked:
        if len(rows):
            writer.writerows(_answers(result.model, rows))
    return text.getvalue()


def _not_a_formula(text: str) -> str:
    """What begins with = + - @, a tab or a carriage return is run by spreadsheets, unless it is a number."""
    return f"'{text}" if text.startswith(FORMULAS) and not is_number(text) else text


def _answers(model: Any, rows: Rows) -> list[tuple[str, int, str, str]]:
    probabilities: NDArray[np.float64] = model.predict_proba(rows.features)
    best = probabilities.argmax(1)
    names = np.asarray(model.classes_)[best]
    likely = probabilities[np.arange(len(best)), best]
    return [
        (_not_a_formula(rows.source), int(number), _not_a_formula(str(name)), f"{p:.6f}")
        for number, name, p in zip(rows.row_numbers, names, likely, strict=True)
    ]
