"""A step of explicit augmentation with roots by Cholesky and by eigendecomposition, beside one of ISDA.

    python benchmarks/explicit.py [--rounds 7]

Writes benchmarks/results/explicit.md: CPU seconds of one thread for statistics, loss and gradients of a batch, with
full covariances; the three take turns on the same batches, and the median of the rounds counts.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from isda.covariance import FullCovariance
from isda.functional.sampling import symmetric_root
from isda.losses import ExplicitLoss, ISDALoss, SemanticLoss

RESULT = Path(__file__).parent / "results" / "explicit.md"
CASES = ((10, 64, 5, 128), (100, 64, 5, 128), (10, 640, 5, 128), (100, 640, 1, 128), (100, 640, 5, 128))
"""Classes, features, draws and batch; the last are those of Figure 10."""


class EigenCovariance(FullCovariance):
    """Draws through symmetric roots."""

    def _roots(self, matrices: Tensor) -> Tensor:
        return symmetric_root(self.scatter.index_select(0, matrices) * self.scale_of(matrices).view(-1, 1, 1))


def criteria(classes: int, features: int, draws: int) -> dict[str, SemanticLoss]:
    """The losses to compare."""
    common: dict[str, Any] = {"num_classes": classes, "feature_dim": features, "lambda_0": 0.5, "schedule": "constant"}
    return {
        "ISDA": ISDALoss(**common),
        "explicit, Cholesky": ExplicitLoss(**common, samples=draws),
        "explicit, eigenvectors": ExplicitLoss(**common, samples=draws, covariance=EigenCovariance(classes, features)),
    }


def step_seconds(classes: int, features: int, draws: int, batch: int, rounds: int) -> dict[str, float]:
    """The median CPU seconds of a step of each."""
    torch.manual_seed(0)
    compared, head = criteria(classes, features, draws), nn.Linear(features, classes)
    times: dict[str, list[float]] = {name: [] for name in compared}
    for _ in range(rounds + 2):
        targets = torch.randint(classes, (batch,))
        rows = torch.randn(batch, features) @ torch.randn(features, features)
        for name, criterion in compared.items():
            inputs = rows.clone().requires_grad_()
            started = time.process_time()
            criterion(head(inputs), targets, features=inputs, weight=head.weight).backward()
            times[name].append(time.process_time() - started)
    return {name: statistics.median(seconds[2:]) for name, seconds in times.items()}


def main() -> None:
    """Measure, print and write the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    names = list(criteria(2, 2, 1))
    lines = [
        "# A step of explicit augmentation",
        "",
        "CPU milliseconds of one thread for statistics, loss and gradients of a batch with full covariances, median of",
        f"{rounds} rounds in which the three take turns. Made by `python benchmarks/explicit.py`.",
        "",
        f"| classes | features | draws | batch | {' | '.join(names)} | eigenvectors / Cholesky |",
        f"|{'---|' * (len(names) + 5)}",
    ]
    for case in CASES:
        seconds = step_seconds(*case, rounds)
        cells = " | ".join(f"{1000 * seconds[name]:.1f}" for name in names)
        ratio = seconds["explicit, eigenvectors"] / seconds["explicit, Cholesky"]
        lines.append(f"| {' | '.join(map(str, case))} | {cells} | {ratio:.1f} |")
        print(lines[-1], flush=True)
    RESULT.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
