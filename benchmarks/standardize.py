"""How ISDAClassifier scales features: python benchmarks/standardize.py writes results/standardize.md.

Digits and wine, ten rows per class, ten draws; tested on all other rows. ISDAClassifier with each scaling and with its
default, which chooses one, beside LogisticRegressionCV on the rows as they are and on those of StandardScaler. Takes
some minutes.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from sklearn.datasets import load_digits, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegressionCV
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from core import markdown
from isda import ISDAClassifier
from isda.lab.report.statistics import Interval, compare_pairs, mean_std
from isda.lab.report.wording import plus_minus

RESULT = Path(__file__).parent / "results" / "standardize.md"
DATA: dict[str, Callable[..., Any]] = {"digits": load_digits, "wine": load_wine}
ROWS_PER_CLASS = 10
DEFAULT = "ISDAClassifier()"
RAW, SCALED = "LogisticRegressionCV", "StandardScaler, LogisticRegressionCV"
SCALED_DEFAULT = "StandardScaler, ISDAClassifier()"
FIGURES = ("error", "log-likelihood")

METHODS: dict[str, Callable[[], Any]] = {
    RAW: lambda: LogisticRegressionCV(max_iter=10_000),
    SCALED: lambda: make_pipeline(StandardScaler(), LogisticRegressionCV(max_iter=10_000)),
    'ISDAClassifier(standardize="columns")': lambda: ISDAClassifier(standardize="columns"),
    'ISDAClassifier(standardize="all")': lambda: ISDAClassifier(standardize="all"),
    DEFAULT: lambda: ISDAClassifier(),
    SCALED_DEFAULT: lambda: make_pipeline(StandardScaler(), ISDAClassifier()),
}
COMPARED = ((DEFAULT, RAW), (DEFAULT, SCALED), (SCALED_DEFAULT, RAW), (SCALED_DEFAULT, SCALED))


def draw(labels: NDArray[np.int64], seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Indices of the training rows, equally many of each class, and of all other rows."""
    rng = np.random.default_rng(seed)
    members = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    few = np.concatenate([rng.choice(rows, ROWS_PER_CLASS, replace=False) for rows in members])
    return few, np.setdiff1d(np.arange(len(labels)), few)


def measure(name: str, draws: int) -> dict[str, dict[str, list[Any]]]:
    """Figures of every method on every draw."""
    inputs, labels = DATA[name](return_X_y=True)
    figures: dict[str, dict[str, list[Any]]] = {
        method: {column: [] for column in (*FIGURES, "seconds", "scaling")} for method in METHODS
    }
    for seed in range(draws):
        few, rest = draw(labels, seed)
        for method, make in METHODS.items():
            start = time.perf_counter()
            model = make().fit(inputs[few], labels[few])
            columns = figures[method]
            columns["seconds"].append(time.perf_counter() - start)
            columns["error"].append(100 * (1 - model.score(inputs[rest], labels[rest])))
            columns["log-likelihood"].append(-log_loss(labels[rest], model.predict_proba(inputs[rest])))
            last = model[-1] if hasattr(model, "steps") else model
            columns["scaling"].append(getattr(last, "standardize_", None))
        Console().print(name, seed, {method: round(columns["error"][-1], 1) for method, columns in figures.items()})
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    warnings.simplefilter("ignore", FutureWarning)
    command = " ".join(["python benchmarks/standardize.py", *sys.argv[1:]])
    page = [
        "# How ISDAClassifier scales features",
        "",
        f"`{command}` (`make bench-standardize`): {ROWS_PER_CLASS} rows per class, draws with seeds 0 to "
        f"{options.draws - 1}, tested on all other rows. Mean ± standard deviation over draws of the error in percent, "
        "the log-likelihood in nats per row and the seconds of a fit. `columns` and `all` count the draws in which one "
        "scale per column and one for all columns were used. Below, differences paired by draw with "
        "simultaneous 95% confidence intervals (Tukey, all pairs, each figure a family of its own): a negative error "
        "and a positive log-likelihood are in favour of ISDAClassifier.",
    ]
    for name in DATA:
        figures = measure(name, options.draws)
        families: dict[str, dict[str, Interval]] = {figure: {} for figure in FIGURES}
        for figure in FIGURES:
            values = {method: figures[method][figure] for method in METHODS}
            for ours in (DEFAULT, SCALED_DEFAULT):
                pairs = {f"{ours} - {base}": (ours, base) for base in (RAW, SCALED)}
                families[figure] |= compare_pairs(values, pairs)
        table = [
            {
                "method": method,
                **{figure: plus_minus(*mean_std(columns[figure]), 2 if figure == "error" else 3) for figure in FIGURES},
                "seconds": f"{np.mean(columns['seconds']):.2f}",
                **{scaling: columns["scaling"].count(scaling) or "" for scaling in ("columns", "all")},
            }
            for method, columns in figures.items()
        ]
        differences = [
            {"": ours, "minus": base}
            | {
                figure: plus_minus(
                    *families[figure][f"{ours} - {base}"],
                    2 if figure == "error" else 3,
                    sign=True,
                )
                for figure in FIGURES
            }
            for ours, base in COMPARED
        ]
        page += ["", f"## {name.capitalize()}", "", markdown(table), "", markdown(differences)]
    options.out.write_text("\n".join([*page, ""]), encoding="utf-8")
    Console().print("\n".join(page))


if __name__ == "__main__":
    main()
