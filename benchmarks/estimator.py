"""Fit time of ISDAClassifier beside LogisticRegression: python benchmarks/estimator.py writes results/estimator.md.

Both solve to the same largest entry of the gradient on the same rows, in turns in one process. The rows are Gaussian
classes with correlated features, standardised. Takes some minutes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from core import markdown
from isda import ISDAClassifier

RESULT = Path(__file__).parent / "results" / "estimator.md"
Fit = Callable[[], Any]
TILTED = "ISDA, within, tilted"
"""Takes the longest, and is fitted in the first round only."""


class Problem(NamedTuple):
    """Rows and labels."""

    inputs: NDArray[np.float64]
    labels: NDArray[np.int64]


def make_problem(rows: int, features: int, classes: int, seed: int = 0) -> Problem:
    """Classes around means of their own; the spectrum of the features falls like 1/k, as those of networks do."""
    rng = np.random.default_rng(seed)
    turn, _ = np.linalg.qr(rng.normal(size=(features, features)))
    mixing = np.arange(1, features + 1)[:, None] ** -0.5 * turn
    labels = np.arange(rows) % classes
    means = 0.5 * rng.normal(size=(classes, features))
    inputs = (rng.normal(size=(rows, features)) + means[labels]) @ mixing
    return Problem((inputs - inputs.mean(0)) / inputs.std(0), labels)


def fits(problem: Problem, C: float, tol: float, strength: float) -> dict[str, Fit]:
    """What is compared; the first is the yardstick."""

    def logistic() -> Any:
        return LogisticRegression(C=C, tol=tol, max_iter=100_000).fit(*problem)

    def ours(covariance: str, bound: str, lambda_0: float) -> Fit:
        model = ISDAClassifier(
            lambda_0, C=C, covariance=covariance, bound=bound, tol=tol, max_iter=100_000, standardize=False
        )
        return lambda: model.fit(*problem)

    found: dict[str, Fit] = {
        "LogisticRegression(lbfgs)": logistic,
        "ISDA, λ0 = 0": ours("within", "jensen", 0.0),
    }
    for covariance in ("within", "diagonal", "full", "shrunk"):
        found[f"ISDA, {covariance}, jensen"] = ours(covariance, "jensen", strength)
    found[TILTED] = ours("within", "tilted", strength)
    return found


def in_turns(made: dict[str, Fit], repeats: int) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Seconds of every fit, one after the other in every round, and the last model of each."""
    seconds: dict[str, list[float]] = {name: [] for name in made}
    models: dict[str, Any] = {}
    for turn in range(repeats):
        for name, fit in made.items():
            if turn and name == TILTED:
                continue
            start = time.perf_counter()
            models[name] = fit()
            seconds[name].append(time.perf_counter() - start)
    return seconds, models


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tol", type=float, default=1e-5)
    parser.add_argument("--strength", type=float, default=1.0)
    parser.add_argument("--C", type=float, nargs="+", default=[0.01, 1.0])
    parser.add_argument("--out", type=Path, default=RESULT)
    asked = parser.parse_args()
    warnings.simplefilter("error", ConvergenceWarning)
    problem = make_problem(asked.rows, asked.features, asked.classes)
    table = []
    for C in asked.C:
        seconds, models = in_turns(fits(problem, C, asked.tol, asked.strength), asked.repeats)
        yardstick = next(iter(seconds.values()))
        for name, taken in seconds.items():
            norm = getattr(models[name], "gradient_norm_", None)
            row = {
                "C": f"{C:g}",
                "fit": name,
                "ratio": f"{statistics.median(a / b for a, b in zip(taken, yardstick, strict=False)):.2f}",
                "seconds": f"{statistics.median(taken):.2f}",
                "steps": int(np.ravel(models[name].n_iter_)[0]),
                "largest entry of the gradient": f"<= {asked.tol:g}" if norm is None else f"{norm:.1e}",
            }
            Console().print(row)
            table.append(row)
    command = " ".join(["python benchmarks/estimator.py", *sys.argv[1:]])
    words = [
        "# Fit time of ISDAClassifier",
        "",
        f"`{command}`: {asked.rows:,} rows, {asked.features} features, {asked.classes} classes, "
        f"float64, λ0 = {asked.strength:g}, until no entry of the gradient is larger than {asked.tol:g} (of the "
        "mean loss per row plus the penalty, in both). Ratios are medians over "
        f"{asked.repeats} rounds of the time of a fit over that of LogisticRegression in the same round.",
        "",
        markdown(table),
        "",
    ]
    asked.out.write_text("\n".join(words), encoding="utf-8")
    Console().print("\n".join(words))


if __name__ == "__main__":
    main()
