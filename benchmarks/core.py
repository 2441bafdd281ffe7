"""Speed and memory of the loss: python benchmarks/core.py writes results/core.csv and results/core.md.

Times are medians over repetitions in which the methods take turns, in one process that nothing else should disturb;
what counts are the ratios. Peak memory is measured in a process of its own per method. Takes a few minutes.
"""

from __future__ import annotations

import csv
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track

from isda import ISDALoss
from isda.lab import networks
from steps import METHODS, Shape, make_step

HERE = Path(__file__).parent
RESULTS = HERE / "results"
THREADS = 2

# Shape, and the least ratio to the dense formulation that we ask of the published bound.
SHAPES: dict[Shape, float | None] = {
    Shape("full", 128, 100, 640): 12,
    Shape("full", 128, 10, 640): 35,
    Shape("full", 128, 100, 64): 8,
    Shape("full", 64, 100, 342): None,
    Shape("diagonal", 128, 100, 640): None,
    Shape("diagonal", 128, 1000, 2048): 100,
}
GROWTH = {
    "N": [Shape("full", n, 50, 256) for n in (64, 128, 256, 512)],
    "C": [Shape("full", 128, c, 256) for c in (10, 20, 50, 100)],
    "A": [Shape("full", 128, 50, a) for a in (128, 256, 512, 1024)],
}
LOW_RANK = Shape("low_rank", 256, 1000, 2048)
MANY_CLASSES = [Shape(name, 256, c, 512) for name in ("diagonal", "within") for c in (25_000, 50_000, 100_000)]


def take_turns(steps: dict[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """Median milliseconds of each step; the steps take turns until ``seconds`` have passed (three turns at least).

    A turn is a quarter of a second or five runs, and its first run does not count: it pays for the caches and the
    memory that the step before it has swept.
    """
    times: dict[str, list[float]] = {name: [] for name in steps}
    end, turn = time.perf_counter() + seconds, 0
    while time.perf_counter() < end or turn < 3:
        turn += 1
        for name, step in steps.items():
            step()
            own_end, runs = time.perf_counter() + 0.25, 0
            while time.perf_counter() < own_end or runs < 4:
                started = time.perf_counter()
                step()
                times[name].append(1e3 * (time.perf_counter() - started))
                runs += 1
    return {name: statistics.median(values) for name, values in times.items()}


def extra_memory(method: str, shape: Shape) -> float:
    """Extra peak memory in MB, in a process of its own."""
    arguments = [method, shape.covariance, shape.n, shape.c, shape.a]
    command = [sys.executable, str(HERE / "memory.py"), *map(str, arguments)]
    output = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "2"}
    )
    return int(output.stdout) / 1e6


def loss_rows() -> list[dict[str, Any]]:
    """Time and memory of each method at each shape."""
    rows = []
    for shape, target in track(SHAPES.items(), description="loss steps", console=Console(stderr=True)):
        times = take_turns({name: make_step(name, shape) for name in METHODS}, seconds=15)
        memory = {name: extra_memory(name, shape) for name in METHODS}
        for name in METHODS:
            rows.append(
                {
                    "shape": str(shape),
                    "method": name,
                    "ms": round(times[name], 3),
                    "times faster than dense": round(times["dense"] / times[name], 1),
                    "at least": target if name == "jensen" and target else "",
                    "extra peak MB": round(memory[name], 1),
                    "dense memory / ours": round(memory["dense"] / max(memory[name], 0.1), 1),
                }
            )
    return rows


def growth_rows() -> list[dict[str, Any]]:
    """How the time of our step grows when one size doubles."""
    rows = []
    for size, shapes in track(GROWTH.items(), description="growth", console=Console(stderr=True)):
        times = take_turns({str(shape): make_step("jensen", shape) for shape in shapes}, seconds=5)
        values = list(times.values())
        rows.append(
            {
                "size": size,
                "shapes": ", ".join(times),
                "ms": ", ".join(f"{value:.2f}" for value in values),
                "ratio per step": ", ".join(f"{b / a:.2f}" for a, b in pairwise(values)),
            }
        )
    return rows


def training_rows() -> list[dict[str, Any]]:
    """Share of the loss in a training step of ResNet-32 at N=128."""
    rows = []
    for classes in track((10, 100), description="training step", console=Console(stderr=True)):
        torch.manual_seed(0)
        model = networks.create("resnet-32", num_classes=classes).to(memory_format=torch.channels_last)
        images = torch.randn(128, 3, 32, 32).to(memory_format=torch.channels_last)
        targets = torch.randint(classes, (128,))
        shape = Shape("full", 128, classes, model.feature_dim)

        def step(
            model: torch.nn.Module = model, images: torch.Tensor = images, targets: torch.Tensor = targets
        ) -> None:
            F.cross_entropy(model(images), targets).backward()

        criterion = ISDALoss.attach(model)

        def with_isda(
            model: torch.nn.Module = model,
            images: torch.Tensor = images,
            targets: torch.Tensor = targets,
            criterion: ISDALoss = criterion,
        ) -> None:
            criterion(model(images), targets, strength=0.5).backward()

        times = take_turns({"plain": step, "isda": with_isda}, seconds=20)
        loss = take_turns({name: make_step(name, shape) for name in ("cross-entropy", "jensen")}, seconds=2)
        added = loss["jensen"] - loss["cross-entropy"]
        rows.append(
            {
                "network": f"ResNet-32, C={classes}, N=128",
                "training step with cross-entropy, ms": round(times["plain"], 1),
                "with ISDA, ms": round(times["isda"], 1),
                "what ISDA adds to the loss step, ms": round(added, 2),
                "share of the training step, %": round(100 * added / times["plain"], 2),
            }
        )
    return rows


def low_rank_rows() -> list[dict[str, Any]]:
    """ImageNet's shape with correlations, beside the diagonal."""
    shapes = {shape: make_step("jensen", shape) for shape in (LOW_RANK, replace(LOW_RANK, covariance="diagonal"))}
    times = take_turns({str(shape): step for shape, step in shapes.items()}, seconds=5)
    return [
        {
            "shape": str(shape),
            "ms": round(times[str(shape)], 1),
            "extra peak MB": round(extra_memory("jensen", shape), 1),
        }
        for shape in shapes
    ]


def many_classes_rows() -> list[dict[str, Any]]:
    """Up to 100,000 classes, such as faces; one shape at a time, because of the memory."""
    rows = []
    for shape in track(MANY_CLASSES, description="many classes", console=Console(stderr=True)):
        times = take_turns({name: make_step(name, shape) for name in ("cross-entropy", "jensen")}, seconds=0)
        rows.append(
            {
                "shape": str(shape),
                "cross-entropy, ms": round(times["cross-entropy"]),
                "jensen, ms": round(times["jensen"]),
                "µs per class": round(1e3 * times["jensen"] / shape.c, 1),
                "extra peak MB": round(extra_memory("jensen", shape)),
            }
        )
    return rows


def markdown(rows: list[dict[str, Any]]) -> str:
    """Rows as a table."""
    lines = ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    return "\n".join(lines + ["| " + " | ".join(map(str, row.values())) + " |" for row in rows])


def main() -> None:
    """Measure everything and write the results."""
    torch.set_num_threads(THREADS)
    losses, growth, training, low_rank = loss_rows(), growth_rows(), training_rows(), low_rank_rows()
    many_classes = many_classes_rows()
    RESULTS.mkdir(exist_ok=True)
    with open(RESULTS / "core.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(losses[0]))
        writer.writeheader()
        writer.writerows(losses)
    text = f"""# Speed and memory of the loss

Written by `make bench` (benchmarks/core.py). CPU, {THREADS} threads, float32, torch {torch.__version__.split("+")[0]}.
Times are medians of a whole loss step: logits, statistics, forward and backward. `jensen` and `tilted` are ISDALoss
with the published and the tilted bound, `dense` is the published formulation written with N x C x A differences and
one covariance gathered per sample (benchmarks/dense.py). Extra memory is what the step adds to the peak of a process
that holds inputs and statistics.

{markdown(losses)}

## Growth of the published bound's step

{markdown(growth)}

## Share of a training step

{markdown(training)}

## Correlations at ImageNet's shape

The low-rank covariance has rank 16.

{markdown(low_rank)}

## Very many classes

Time grows linearly with C, and no tensor is larger than the logits, the weights or the statistics.

{markdown(many_classes)}
"""
    (RESULTS / "core.md").write_text(text, encoding="utf-8")
    Console().print(text)


if __name__ == "__main__":
    main()
