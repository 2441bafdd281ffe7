"""Long tails on embeddings: CIFAR-10, imbalance 100, a linear classifier with each provider; head, middle, tail error.

    python benchmarks/longtail.py --embeddings cifar10.npz [--record longtail-runs.csv]

The file holds x_train, y_train, x_test, y_test: embeddings and labels. Each method has four strengths to choose from on
balanced samples that are held out, and further ones until the best is not at the end of what was tried; then five
paired draws (question 7 of benchmarks/plan.md). Finished runs are kept in the record; when all are there,
benchmarks/results/longtail.md is written.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from analyse import LONG_TAIL, RESULTS, marked
from csv_files import append_csv, read_csv
from isda import ISDALoss
from isda._utils.seeds import generator, mix
from isda.covariance import ConfusionCovariance, FullCovariance, ScaledCovariance
from isda.functional import class_balanced_weights
from isda.lab.data import hold_out, long_tailed
from isda.lab.tasks.classification.settings import class_parts
from isda.losses.long_tail import ConfusionShift, LDAMMargins, LogitAdjustment, MetaLearner

IMBALANCE, HELD_OUT = 100.0, 1000
SEEDS, CHOOSING_SEEDS = range(10, 15), (100, 101, 102)
MOST = 8
"""Strengths that a method may try."""
COMPONENTS, EPOCHS, BATCH, RATE, DECAY, DEFERRED = 128, 30, 64, 0.05, 5e-4, 0.8
STRENGTHS, TAUS, SCALES = (0.25, 1.0, 4.0, 16.0), (0.5, 1.0, 1.5, 2.0), (1.0, 4.0, 16.0, 64.0)


class Problem(NamedTuple):
    """One draw: training and test samples, and training samples of each class."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    counts: list[int]


@dataclass(frozen=True)
class Method:
    """A provider with strengths to choose from."""

    searched: str
    strengths: tuple[float, ...]
    criterion: Callable[[nn.Module, list[int], float, int], ISDALoss]
    further: Callable[[float, int], float] = lambda value, direction: value * 4.0**direction
    """The next strength below (-1) or above (1) one."""
    deferred: bool = False
    """Whether class-balanced weights come in for the last fifth of a run."""
    meta: bool = False


def _isda(model: nn.Module, counts: list[int], strength: float, steps: int, **given: Any) -> ISDALoss:
    return ISDALoss.attach(model, strength, steps, reduction="none", class_weight=torch.ones(len(counts)), **given)


def _offset(model: nn.Module, counts: list[int], offset: LogitAdjustment | LDAMMargins | None) -> ISDALoss:
    return _isda(model, counts, 0.0, 1, covariance="identity", offset=offset)


def _estimated(counts: list[int]) -> FullCovariance:
    return FullCovariance(len(counts), COMPONENTS)


METHODS = {
    "cross-entropy": Method("", (0.0,), lambda m, n, s, t: _offset(m, n, None)),
    "ISDA": Method("λ0", STRENGTHS, _isda),
    "logit adjustment": Method(
        "τ", TAUS, lambda m, n, s, t: _offset(m, n, LogitAdjustment(n, s)), lambda value, way: value + 0.5 * way
    ),
    "logit adjustment (τ = 1) + ISDA": Method(
        "λ0", STRENGTHS, lambda m, n, s, t: _isda(m, n, s, t, offset=LogitAdjustment(n))
    ),
    "LDAM": Method("s", SCALES, lambda m, n, s, t: _offset(m, n, LDAMMargins(n, scale=s))),
    "LDAM, deferred weights": Method(
        "s",
        SCALES,
        lambda m, n, s, t: _offset(m, n, LDAMMargins(n, scale=s)),
        deferred=True,
    ),
    "class-balanced weights": Method(
        "β",
        (0.9, 0.99, 0.999, 0.9999),
        lambda m, n, s, t: _offset(m, n, None),
        lambda value, way: round(1 - (1 - value) * 0.1**way, 8),
    ),
    "RISDA, deferred weights": Method(
        "λ0",
        STRENGTHS,
        lambda m, n, s, t: _isda(m, n, s, t, covariance=ConfusionCovariance(_estimated(n)), shift=ConfusionShift(0.5)),
        deferred=True,
    ),
    "MetaSAug, deferred weights": Method(
        "λ0",
        STRENGTHS,
        lambda m, n, s, t: _isda(m, n, s, t, covariance=ScaledCovariance(_estimated(n))),
        deferred=True,
        meta=True,
    ),
    "ISDA, deferred weights": Method("λ0", STRENGTHS, _isda, deferred=True),
}
"""In the order of the table; the last tells what of RISDA and MetaSAug is due to the weights."""


def draw(data: dict[str, Tensor], seed: int, choosing: bool) -> Problem:
    """A long tail of the training samples, on principal components of unit mean variance."""
    x, y, x_test, y_test = (data[name] for name in ("x_train", "y_train", "x_test", "y_test"))
    if choosing:
        split = hold_out(y, HELD_OUT, seed=0)
        x_test, y_test = x[split.held_out], y[split.held_out]
        x, y = x[split.training], y[split.training]
    chosen = long_tailed(y, IMBALANCE, seed=seed)
    x, y = x[chosen], y[chosen]
    mean, std = x.mean(0), x.std(0) + 1e-6
    _, values, directions = torch.linalg.svd((x - mean) / std, full_matrices=False)
    unit = values[:COMPONENTS].square().mean().sqrt() / math.sqrt(len(x))
    project = directions[:COMPONENTS].t() / unit
    x, x_test = (((part - mean) / std) @ project for part in (x, x_test))
    return Problem(x, y, x_test, y_test, y.bincount().tolist())


def per_sample(counts: list[int], beta: float) -> Tensor:
    """Class-balanced weights with mean 1 over the training samples."""
    sizes, weights = torch.tensor(counts, dtype=torch.float64), class_balanced_weights(counts, beta)
    return (weights * sizes.sum() / (weights * sizes).sum()).float()


def train(name: str, strength: float, problem: Problem, seed: int) -> dict[str, float]:
    """One run: a linear classifier by stochastic gradient descent; its figures."""
    started, method, counts = time.perf_counter(), METHODS[name], problem.counts
    torch.manual_seed(mix(seed, 1))
    model = nn.Sequential(nn.Linear(COMPONENTS, len(counts)))
    per_epoch = len(problem.y) // BATCH
    total = EPOCHS * per_epoch
    criterion = method.criterion(model, counts, strength, total)
    learner = MetaLearner(criterion) if method.meta else None
    members = [(problem.y == c).nonzero().flatten() for c in range(len(counts))]
    optimiser = torch.optim.SGD(model.parameters(), RATE, momentum=0.9, weight_decay=DECAY, nesterov=True)
    weights = criterion.class_weight
    assert weights is not None
    if name == "class-balanced weights":
        weights.copy_(per_sample(counts, strength))
    for step in range(total):
        if step % per_epoch == 0:
            order = torch.randperm(len(problem.y), generator=generator(seed, 2, step))
        if method.deferred and step == round(DEFERRED * total):
            weights.copy_(per_sample(counts, 0.9999))
        rate = RATE * (1 + math.cos(math.pi * step / total)) / 2
        for group in optimiser.param_groups:
            group["lr"] = rate
        rows = order[step % per_epoch * BATCH :][:BATCH]
        x, y = problem.x[rows], problem.y[rows]
        if learner is not None:
            drawing = generator(seed, 3, step)
            places = [own[torch.randint(len(own), (-(-BATCH // len(counts)),), generator=drawing)] for own in members]
            balanced = torch.cat(places)
            learner.step(model, (x, y), (problem.x[balanced], problem.y[balanced]), rate)
        loss = criterion(model(x), y).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return measure(model, problem) | {"seconds": time.perf_counter() - started}


@torch.no_grad()
def measure(model: nn.Module, problem: Problem) -> dict[str, float]:
    """Error overall and of each part in percent, and mean negative log-likelihood."""
    logits = model.eval()(problem.x_test)
    wrong = (logits.argmax(1) != problem.y_test).double()
    found = {"error": 100 * float(wrong.mean())}
    for part, classes in class_parts(problem.counts).items():
        found[part] = 100 * float(wrong[torch.isin(problem.y_test, torch.tensor(classes))].mean())
    return found | {"nll": float(F.cross_entropy(logits, problem.y_test))}


class Record:
    """Runs that are done, in a file: name, strength and seed to figures."""

    def __init__(self, path: Path) -> None:
        self.path, self.done = path, dict[tuple[str, float, int], dict[str, float]]()
        for row in read_csv(path) if path.exists() else []:
            key = row.pop("method"), float(row.pop("strength")), int(row.pop("seed"))
            self.done[key] = {name: float(value) for name, value in row.items()}

    def add(self, key: tuple[str, float, int], figures: dict[str, float]) -> None:
        """Keep a run at once."""
        self.done[key] = figures
        columns = (*LONG_TAIL, "seconds")
        row = [*key, *(repr(figures.get(name, math.nan)) for name in columns)]
        append_csv(self.path, ("method", "strength", "seed", *columns), [row])


def run_all(data: dict[str, Tensor], record: Record) -> None:
    """Make what is missing, with the strength of the lowest mean held-out error, the smaller one of equals."""
    choosing = {seed: draw(data, seed, choosing=True) for seed in CHOOSING_SEEDS}
    chosen = {name: choose(record, name, choosing) if METHODS[name].searched else 0.0 for name in METHODS}
    for seed in SEEDS:
        problem = draw(data, seed, choosing=False)
        for name, strength in chosen.items():
            once(record, (name, strength, seed), problem)


def choose(record: Record, name: str, problems: dict[int, Problem]) -> float:
    """Try the method's strengths, and further ones while the best is the first or the last of them."""
    method = METHODS[name]
    strengths = list(method.strengths)
    while True:
        for strength in strengths:
            for seed, problem in problems.items():
                once(record, (name, strength, seed), problem)
        errors = held_out_errors(record, name)
        best = min(errors, key=lambda strength: (errors[strength], strength))
        if strengths[0] < best < strengths[-1] or len(strengths) == MOST:
            return best
        way = -1 if best == strengths[0] else 1
        strengths = sorted([*strengths, method.further(best, way)])


def held_out_errors(record: Record, name: str) -> dict[float, float]:
    """Mean held-out error by strength."""
    errors = dict[float, list[float]]()
    for (method, strength, seed), figures in sorted(record.done.items()):
        if method == name and seed in CHOOSING_SEEDS:
            errors.setdefault(strength, []).append(figures["error"])
    return {strength: statistics.fmean(values) for strength, values in errors.items()}


def once(record: Record, key: tuple[str, float, int], problem: Problem) -> None:
    """Make a run unless it is there."""
    if key not in record.done:
        record.add(key, train(key[0], key[1], problem, key[2]))
        print(*key, f"{record.done[key]['error']:.2f}%", f"{record.done[key]['seconds']:.1f} s", flush=True)


def tried(record: Record) -> Iterator[str]:
    """Held-out error by strength."""
    for name, method in METHODS.items():
        if method.searched:
            errors = [f"{s:g}: {error:.1f}" for s, error in held_out_errors(record, name).items()]
            yield f"| {name} | {method.searched} | {', '.join(errors)} |"


def write(record: Record, data: dict[str, Tensor]) -> None:
    """The figures of every run, and the page made from them."""
    (RESULTS / "longtail.csv").write_text(record.path.read_text(encoding="utf-8"), encoding="utf-8")
    counts = draw(data, SEEDS[0], choosing=False).counts
    parts = class_parts(counts)
    told = "; ".join(f"{name} {', '.join(str(counts[index]) for index in part)}" for name, part in parts.items())
    text = f"""# Long-tailed CIFAR-10 on embeddings, imbalance 100

Generated by `python benchmarks/longtail.py`. Embeddings of efficientnet-lite0 (ImageNet) at 128 pixels,
{len(data["y_train"]):,} training and {len(data["y_test"]):,} test images (balanced); each seed draws {sum(counts):,}
training images, by class: {told}.
A linear classifier on {COMPONENTS} principal components of the drawn images, {EPOCHS} epochs. Each method chose its
strength among four by the mean error on {HELD_OUT:,} balanced training images held out (seeds {CHOOSING_SEEDS});
while the best was the first or the last, the next one was tried, up to {MOST}.
Mean ± standard deviation over {len(SEEDS)} draws; differences are in points, of nll in nats.
Deferred weights are class-balanced ones (β = 0.9999) in the last fifth of a run.

{marked("longtail")}
"""
    text += "\nHeld-out error, %, by strength:\n\n| method | strength | tried |\n|---|---|---|\n"
    text += "\n".join(tried(record)) + "\n"
    (RESULTS / "longtail.md").write_text(text, encoding="utf-8")


def main() -> None:
    """Make what is missing, then write the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--embeddings", type=Path, required=True)
    parser.add_argument("--record", type=Path, default=Path("longtail-runs.csv"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    names = ("x_train", "y_train", "x_test", "y_test")
    with np.load(arguments.embeddings) as file:
        data = {name: torch.from_numpy(file[name]) for name in names}
    record = Record(arguments.record)
    run_all(data, record)
    write(record, data)


if __name__ == "__main__":
    main()
