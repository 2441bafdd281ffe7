"""Fit time of ISDAClassifier beside scikit-learn: python benchmarks/estimator.py writes results/estimator.md.

Two tables: fits with given settings beside LogisticRegression, and ISDAClassifier(), which chooses its settings by
cross-validation, beside LogisticRegressionCV. What stands in one row of a table was measured in turns in one process
with the same number of threads; seconds are the processor's. The rows are Gaussian classes with correlated features.
The result is written after each table; `--parts` selects tables, the others are kept as they are. `--shape 200 20 4`
tries the script on few rows.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import StandardScaler

from core import markdown
from isda import ISDAClassifier

RESULT = Path(__file__).parent / "results" / "estimator.md"
Fit = Callable[[], Any]
Shape = tuple[int, int, int]
"""Rows, features and classes."""
FIXED_SHAPE = (10_000, 512, 100)
"""Of the fits with given settings."""
SHAPES = ((500, 1280, 50), (2_000, 1280, 100), (50_000, 64, 10))
"""Of the fits that choose their settings."""
DISTANCE = {64: 4.0, 1280: 16.0}
"""Between class means, in standard deviations, by features: held-out errors of 2 to 20%; 4 for other numbers."""
LOGISTIC_POINTS = 10
"""Values of C from 1e-4 to 1e4 that LogisticRegressionCV tries, its default."""
LOGISTIC_FOLDS = {500: 5, 2_000: 1, 50_000: 5}
"""Of the five folds, how many are timed by rows; time is proportional to their number."""


class Problem(NamedTuple):
    """Rows and labels."""

    inputs: NDArray[np.float64]
    labels: NDArray[np.int64]


def make_problem(rows: int, features: int, classes: int, distance: float, seed: int = 0) -> Problem:
    """Classes around means of their own; the spectrum of the features falls like 1/k, as those of networks do."""
    rng = np.random.default_rng(seed)
    turn, _ = np.linalg.qr(rng.normal(size=(features, features)))
    mixing = np.arange(1, features + 1)[:, None] ** -0.5 * turn
    labels = np.arange(rows) % classes
    means = distance / np.sqrt(2 * features) * rng.normal(size=(classes, features))
    return Problem((rng.normal(size=(rows, features)) + means[labels]) @ mixing, labels)


def in_turns(fits: dict[str, Fit], repeats: int) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Seconds of every fit, one after the other in every round, and the last model of each."""
    seconds: dict[str, list[float]] = {name: [] for name in fits}
    models: dict[str, Any] = {}
    for _ in range(repeats):
        for name, fit in fits.items():
            start = time.process_time()
            models[name] = fit()
            seconds[name].append(time.process_time() - start)
    return seconds, models


def ratio(taken: list[float], yardstick: list[float]) -> str:
    return f"{statistics.median(a / b for a, b in zip(taken, yardstick, strict=True)):.2f}"


def fixed(repeats: int, shapes: Sequence[Shape]) -> Iterator[dict[str, Any]]:
    """Fits with given settings; the first is the yardstick."""
    (rows, features, classes), tol = shapes[0], 1e-5
    raw = make_problem(rows, features, classes, 0.5 * np.sqrt(2 * features))
    problem = Problem(StandardScaler().fit_transform(raw.inputs), raw.labels)

    def ours(lambda_0: float, covariance: str = "within") -> Fit:
        settings: dict[str, Any] = {"C": 0.1, "tol": tol, "max_iter": 100_000, "standardize": False}
        model = ISDAClassifier(lambda_0, covariance=covariance, **settings)
        return lambda: model.fit(*problem)

    fits: dict[str, Fit] = {
        "LogisticRegression(lbfgs)": lambda: LogisticRegression(C=0.1, tol=tol, max_iter=100_000).fit(*problem),
        "ISDA, λ0 = 0": ours(0.0),
        **{f"ISDA, {name}": ours(1.0, name) for name in ("within", "diagonal", "full")},
    }
    seconds, models = in_turns(fits, repeats)
    for name, taken in seconds.items():
        yield {
            "fit": name,
            "ratio": ratio(taken, seconds["LogisticRegression(lbfgs)"]),
            "seconds": f"{statistics.median(taken):.2f}",
            "steps": int(np.ravel(models[name].n_iter_)[0]),
        }


def chosen(repeats: int, shapes: Sequence[Shape]) -> Iterator[dict[str, Any]]:
    """Fits that choose their settings, beside LogisticRegressionCV with as many folds and its ten points."""
    for shape in shapes:
        problem = make_problem(*shape, DISTANCE.get(shape[1], 4.0))
        scaled = Problem(StandardScaler().fit_transform(problem.inputs), problem.labels)
        timed = LOGISTIC_FOLDS.get(shape[0], 5)
        splits = list(StratifiedKFold(5).split(*scaled))[:timed]

        def logistic(scaled: Problem = scaled, splits: Any = splits) -> Any:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", (ConvergenceWarning, FutureWarning))
                # Without the last fit to all rows, so that time is proportional to the folds.
                grid = {"Cs": LOGISTIC_POINTS, "cv": splits, "max_iter": 1000, "scoring": "neg_log_loss"}
                return LogisticRegressionCV(**grid, refit=False).fit(*scaled)

        fits: dict[str, Fit] = {
            "ours": lambda problem=problem: ISDAClassifier().fit(*problem),  # type: ignore[misc]
            "logistic": logistic,
        }
        seconds, models = in_turns(fits, repeats)
        ours, results = models["ours"], models["ours"].cv_results_
        theirs = [taken * 5 / timed for taken in seconds["logistic"]]
        yield {
            "rows x features, classes": f"{shape[0]:,} x {shape[1]:,}, {shape[2]}",
            "ISDAClassifier(), seconds": f"{statistics.median(seconds['ours']):.1f}",
            "points": len(results["params"]),
            "LogisticRegressionCV, seconds": f"{statistics.median(theirs):.1f}",
            "ratio": ratio(seconds["ours"], theirs),
            "λ0, C, scaling": f"{ours.lambda_0_:g}, {ours.C_:g}, {ours.standardize_}",
            "held-out log-likelihood": f"{results['mean_test_score'][results['best_index']]:.3f}",
        }


PARTS: dict[str, tuple[Callable[[int, Sequence[Shape]], Iterator[dict[str, Any]]], str, str]] = {
    "fixed": (
        fixed,
        "With given settings",
        "10,000 rows, 512 features, 100 classes, C = 0.1, λ0 = 1, float64, tol = 1e-5: the largest entry of the "
        "gradient of the mean loss per row plus the penalty, for ISDA in units of the root of the curvature.",
    ),
    "chosen": (
        chosen,
        "With settings chosen by cross-validation",
        "`ISDAClassifier()`: λ0, C, scale and scaling by five folds. "
        f"LogisticRegressionCV has {LOGISTIC_POINTS} values "
        "of C from 1e-4 to 1e4 and five folds, without its last fit to all rows; at 2,000 rows one fold is timed and "
        "multiplied by five.",
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--shape", nargs=3, type=int, metavar=("ROWS", "FEATURES", "CLASSES"))
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    before = options.out.read_text(encoding="utf-8") if options.out.exists() else ""
    command = " ".join(["python benchmarks/estimator.py", *sys.argv[1:]])
    sections = {}
    for name, (_, title, _) in PARTS.items():
        if f"## {title}\n" in before:
            rest = before.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]
            sections[name] = f"## {title}\n{rest.rstrip()}\n"
    for name in options.parts:
        measure, title, description = PARTS[name]
        shapes = (FIXED_SHAPE,) if name == "fixed" else SHAPES
        table = []
        for row in measure(options.repeats, [tuple(options.shape)] if options.shape else shapes):
            Console().print(row)
            table.append(row)
        rounds = f"Ratios are medians over {options.repeats} rounds." if options.repeats > 1 else "One round."
        sections[name] = f"## {title}\n\n`{command}`. {description} {rounds}\n\n{markdown(table)}\n"
        ordered = [sections[part] for part in PARTS if part in sections]
        options.out.write_text("\n".join(["# Fit time of ISDAClassifier\n", *ordered]), encoding="utf-8")
    Console().print(options.out.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
