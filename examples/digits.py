"""Train a small network on scikit-learn's digits with cross-entropy and with ISDA over several paired seeds.

    python examples/digits.py [--seeds 10] [--labels 200] [--lambda-0 2] [--json FILE]

Every seed draws its own training set, initial weights and order of batches, the same for each method, and tests on all
images it did not draw. The table shows the test errors and the paired differences with their 95% interval, whatever
their sign.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn

from isda import ISDALoss

METHODS = {"cross-entropy": None, "ISDA": "jensen", "ISDA, tilted bound": "tilted"}
EPOCHS, BATCH = 60, 32

# Two-sided 95% points of Student's t for 1..30 degrees of freedom.
_T95 = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
        2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042]  # fmt: skip


def digits() -> tuple[Tensor, Tensor]:
    """All 1,797 images (N, 1, 8, 8) in 0..1 and their labels."""
    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(labels)


def network() -> nn.Sequential:
    """A small convolutional network with 64 features."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


def train(bound: str | None, train_set: tuple[Tensor, Tensor], lambda_0: float, seed: int) -> nn.Module:
    """Train one network; ``bound`` None is plain cross-entropy."""
    torch.manual_seed(seed)
    images, labels = train_set
    model = network()
    steps = EPOCHS * (len(labels) // BATCH)
    criterion: nn.Module = nn.CrossEntropyLoss()
    if bound is not None:
        criterion = ISDALoss.attach(model, lambda_0=lambda_0, total_steps=steps, bound=bound)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    order = torch.Generator().manual_seed(seed)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(labels), generator=order).split(BATCH)[: len(labels) // BATCH]:
            loss = criterion(model(images[batch]), labels[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    return model


def split(labels: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Indices of a class-balanced random subset of ``count`` samples, and of the rest."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1000 + seed))
    per_class = count // 10
    chosen = torch.cat([order[labels[order] == digit][:per_class] for digit in range(10)])
    rest = torch.ones(len(labels), dtype=torch.bool)
    rest[chosen] = False
    return chosen, rest.nonzero().squeeze(1)


@torch.no_grad()
def error(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Test error in percent."""
    model.eval()
    return 100 * float((model(images).argmax(1) != labels).float().mean())


def interval(values: list[float]) -> tuple[float, float]:
    """Mean and half width of its 95% interval."""
    spread = statistics.stdev(values) / math.sqrt(len(values))
    return statistics.mean(values), _T95[min(len(values) - 1, len(_T95)) - 1] * spread


def compare(seeds: int, count: int, lambda_0: float) -> dict[str, list[float]]:
    """Test errors per method and seed, with a progress bar."""
    images, labels = digits()
    errors: dict[str, list[float]] = {method: [] for method in METHODS}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("training", total=seeds * len(METHODS))
        for seed in range(seeds):
            chosen, rest = split(labels, count, seed)
            for method, bound in METHODS.items():
                progress.update(task, description=f"seed {seed}: {method}")
                model = train(bound, (images[chosen], labels[chosen]), lambda_0, seed)
                errors[method].append(error(model, images[rest], labels[rest]))
                progress.advance(task)
    return errors


def main() -> None:
    """Run the comparison and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=10, help="paired repetitions (at least 2)")
    parser.add_argument("--labels", type=int, default=200, help="training images, a multiple of 10")
    parser.add_argument("--lambda-0", type=float, default=2.0, help="final strength of ISDA")
    parser.add_argument("--json", metavar="FILE", help="also write the errors here")
    arguments = parser.parse_args()
    if arguments.seeds < 2 or not 40 <= arguments.labels <= 1700:
        parser.error("--seeds must be at least 2 and --labels between 40 and 1700")
    torch.set_num_threads(1)  # the network is too small to share
    started = time.perf_counter()
    errors = compare(arguments.seeds, arguments.labels, arguments.lambda_0)
    table = Table(
        title=f"digits, {arguments.labels} training images, lambda_0 = {arguments.lambda_0:g}, {arguments.seeds} seeds"
    )
    for heading in ("method", "test error %", "difference to cross-entropy (95% interval)"):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    for method, values in errors.items():
        paired = [ours - base for ours, base in zip(values, errors["cross-entropy"], strict=True)]
        mean, half = interval(paired)
        difference = "" if METHODS[method] is None else f"{mean:+.2f} ± {half:.2f}"
        table.add_row(method, f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}", difference)
    console = Console()
    console.print(table)
    console.print(f"mean ± standard deviation over seeds; {time.perf_counter() - started:.0f} s")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"arguments": vars(arguments), "errors": errors}, file, indent=1)


if __name__ == "__main__":
    main()
