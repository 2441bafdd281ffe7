"""Does the consistency bound on unlabelled rows (Prop. 2) help with five labels per class? Writes results/unlabelled.*

    python benchmarks/unlabelled.py --cache CACHE        (benchmarks/problem_sets.py makes the cache)

Ten draws of five labelled rows of each class and 1,000 rows without a label. λ0 and C are chosen on the labelled rows
alone; then the classifier is fitted to these, and trained with the unlabelled rows at several weights of the bound.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from csv_files import append_csv, read_csv
from isda import ISDAClassifier
from isda.estimator.table_baselines import probability_measures
from isda.lab.report.statistics import many_to_one
from isda.lab.report.wording import difference_text, number
from problem_methods import folds
from problem_sets import Draw, Problem
from recording import RESULTS

PROBLEMS = tuple(
    Problem(name, 5, "") for name in ("cifar10", "svhn", "digits", "20newsgroups", "reuters-8", "japanese-vowels")
)
DRAWS, MOST = 10, 1000
EPOCHS = 100
STRENGTH = 1.0
"""Of the augmentation where the labelled rows alone would do without it: the bound is nothing then."""
ALONE, TRAINED = "labelled rows", "trained, weight 0"
WEIGHTS = {TRAINED: 1e-9, "trained, weight 0.3": 0.3, "trained, weight 1": 1.0}
FIGURES = ("error", "log_likelihood")
COLUMNS = ("problem", "draw", "method", *FIGURES, "seconds", "lambda_0", "C")


def fits(draw: Draw, number: int) -> Iterator[tuple[str, Any]]:
    """The classifiers, one after the other."""
    rows, labels = draw.features.astype(np.float64), draw.labels
    alone: Any = ISDAClassifier(scale=1.0, standardize=True, cv=folds(number), random_state=number).fit(rows, labels)
    yield ALONE, alone
    others = draw.others[np.random.default_rng(number).permutation(len(draw.others))[:MOST]].astype(np.float64)
    every, known = np.concatenate([rows, others]), np.concatenate([labels, np.full(len(others), -1)])
    for name, weight in WEIGHTS.items():
        settings: dict[str, Any] = {"lambda_0": alone.lambda_0_ or STRENGTH, "C": alone.C_, "consistency": weight}
        trained = ISDAClassifier(**settings, unlabelled=-1, epochs=EPOCHS, validation_fraction=0, random_state=number)
        yield name, trained.fit(every, known)


def make(record: Path, cache: Path, minutes: float) -> bool:
    """Append what is missing; False if the time was too short."""
    there = {(row["problem"], int(row["draw"])) for row in (read_csv(record) if record.exists() else [])}
    began = time.monotonic()
    for number_of_draw in range(DRAWS):
        for problem in PROBLEMS:
            if (problem.name, number_of_draw) in there:
                continue
            if time.monotonic() - began > 60 * minutes:
                return False
            _append(record, problem, number_of_draw, cache)
    return True


def _append(record: Path, problem: Problem, draw: int, cache: Path) -> None:
    rows, lines = problem.draw(cache, draw), []
    began = time.process_time()
    for name, model in fits(rows, draw):
        found = probability_measures(model.predict_proba(rows.test_features.astype(np.float64)), rows.test_labels)
        seconds = time.process_time() - began
        figures = [f"{found[figure]:.5f}" for figure in FIGURES]
        lines.append([problem.name, draw, name, *figures, f"{seconds:.2f}", model.lambda_0_, model.C_])
        began = time.process_time()
    append_csv(record, COLUMNS, lines)
    print(problem.name, draw, *(f"{line[2]}: {line[3]} {line[4]};" for line in lines), flush=True)


def page(record: Path) -> str:
    """The table, with intervals that hold together."""
    figures: dict[tuple[str, str], dict[str, list[float]]] = {}
    for row in sorted(read_csv(record), key=lambda row: int(row["draw"])):
        for name in FIGURES:
            figures.setdefault((row["problem"], name), {}).setdefault(row["method"], []).append(float(row[name]))
    others = list(WEIGHTS)
    lines = []
    for name, title, digits in (("error", "Error, %", 2), ("log_likelihood", "Log-likelihood per row", 3)):
        against = " | ".join(f"{other[9:]} − {TRAINED[9:]}" for other in others[1:])
        lines += [f"## {title}", "", f"| problem | {ALONE} | {' | '.join(others)} | {against} |"]
        lines += ["|---|" + "---|" * (1 + len(others) + len(others[1:]))]
        for problem in PROBLEMS:
            own = figures.get((problem.name, name), {})
            if own:
                means = [number(float(np.mean(own[method])), digits) for method in (ALONE, *others)]
                family = many_to_one({method: own[method] for method in others}, TRAINED)
                gaps = [difference_text(family.get(other), digits) for other in others[1:]]
                lines.append(f"| {problem.name} | {' | '.join([*means, *gaps])} |")
        lines.append("")
    return f"""# The consistency bound on unlabelled rows of embeddings

Generated by `python benchmarks/unlabelled.py`. {DRAWS} draws of 5 labelled rows of each class and up to {MOST:,}
rows without a label from the same pool; means over draws. "{ALONE}": ISDAClassifier with λ0 and C chosen by five
folds, the convex problem solved. "trained, weight w": the same λ0 (or {STRENGTH:g} where none was chosen) and C,
labelled and unlabelled rows, the bound of Prop. 2 with weight w, by {EPOCHS} epochs of the stochastic trainer,
which starts from that solution and holds no rows out; weight 0 is that trainer without the bound. Differences are
paired by draw, simultaneous 95% confidence intervals of each problem and figure (Dunnett, {len(others)} weights x
{DRAWS} draws).
Negative differences of errors and positive ones of log-likelihoods are better.

""" + "\n".join(lines)


def main() -> None:
    """Make what is missing, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path("data/problems"))
    parser.add_argument("--record", type=Path, default=RESULTS / "unlabelled.csv")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after this long")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if make(arguments.record, arguments.cache, arguments.minutes):
        (RESULTS / "unlabelled.md").write_text(page(arguments.record), encoding="utf-8")
        (RESULTS / "unlabelled.csv").write_bytes(arguments.record.read_bytes())
    else:
        print("stopped: the time is over")


if __name__ == "__main__":
    main()
