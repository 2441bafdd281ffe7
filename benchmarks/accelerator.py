"""What a loss step asks of a GPU: python benchmarks/accelerator.py writes results/accelerator.md.

Nothing is timed. The step runs on the pretend device of the tests, which counts kernels launched, waits of the host,
floating point operations of the matrix products and bytes read and written; a roofline turns them into a time: a kernel
takes the longest of its launch, its arithmetic and its memory traffic, and a wait costs a round trip. Takes a minute.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

from dense import DenseISDA  # noqa: E402
from isda import ISDALoss  # noqa: E402
from pretend_accelerator import PretendAccelerator, on_pretend  # type: ignore[import-not-found]  # noqa: E402
from steps import STRENGTH, Shape  # noqa: E402

RESULT = HERE / "results" / "accelerator.md"
FLOPS, BYTES, LAUNCH, WAIT = 19.5e12, 1.555e12, 5e-6, 20e-6
SHAPES = (
    Shape("full", 128, 10, 640),
    Shape("full", 128, 100, 64),
    Shape("full", 128, 100, 640),
    Shape("diagonal", 128, 100, 640),
    Shape("diagonal", 256, 1000, 2048),
    Shape("low_rank", 256, 1000, 2048),
)
MOST_DENSE_BYTES = 2e9
"""Beyond this the dense formulation does not fit the memory of an ordinary machine: its row is left out."""


class Cost(NamedTuple):
    """One step."""

    launches: int
    waits: int
    flops: float
    bytes: float
    seconds: float


def cost_of(step: Callable[[], None], device: Any, warm_up: int = 2) -> Cost:
    """Count the last of a few steps."""
    for _ in range(warm_up):
        step()
    device.clear()
    step()
    kernels = device.launches
    seconds = sum(max(LAUNCH, kernel.flops / FLOPS, kernel.bytes / BYTES) for kernel in kernels)
    waits = len(device.waits)
    flops, moved = sum(kernel.flops for kernel in kernels), sum(kernel.bytes for kernel in kernels)
    return Cost(len(kernels), waits, flops, moved, seconds + waits * WAIT)


def make_step(method: str, shape: Shape) -> Callable[[], None]:
    """The loss, the statistics and the gradients of logits and weights; every class occurs if there are rows enough."""
    generator = torch.Generator().manual_seed(0)
    features = on_pretend(torch.randn(shape.n, shape.a, generator=generator))
    targets = on_pretend(torch.arange(shape.n) % shape.c)
    weight = on_pretend(0.1 * torch.randn(shape.c, shape.a, generator=generator) / shape.a**0.5).requires_grad_()
    logits = on_pretend(torch.randn(shape.n, shape.c, generator=generator)).requires_grad_()
    if method == "dense":
        dense = DenseISDA(shape.c, shape.a, shape.covariance)
        for name in ("covariance", "mean", "count"):
            setattr(dense, name, on_pretend(getattr(dense, name)))

        def loss() -> torch.Tensor:
            return dense.loss(logits, targets, features, weight, STRENGTH)
    else:
        criterion = ISDALoss(shape.c, shape.a, covariance=shape.covariance, bound=method, device="pretend")

        def loss() -> torch.Tensor:
            return criterion(logits, targets, features=features, weight=weight, strength=STRENGTH)

    def step() -> None:
        loss().backward()
        weight.grad = logits.grad = None

    return step


def dense_fits(shape: Shape) -> bool:
    """Whether there is a dense formulation of this covariance, and memory for it."""
    per_row = shape.a**2 if shape.covariance == "full" else shape.c * shape.a
    return shape.covariance != "low_rank" and 4 * shape.n * per_row <= MOST_DENSE_BYTES


def main() -> None:
    """Count everything and write the table."""
    lines = ["| shape | method | launches | waits | GFLOP | GB moved | roofline, ms |", "|---|---|---|---|---|---|---|"]
    for shape in SHAPES:
        for method in ("jensen", "tilted", "dense"):
            if method == "dense" and not dense_fits(shape):
                continue
            with PretendAccelerator() as device:
                cost = cost_of(make_step(method, shape), device)
            figures = f"{cost.flops / 1e9:.2f} | {cost.bytes / 1e9:.3f} | {1e3 * cost.seconds:.2f}"
            lines.append(f"| {shape} | {method} | {cost.launches} | {cost.waits} | {figures} |")
            Console(stderr=True).print(lines[-1])
    text = f"""# What a loss step asks of a GPU

Written by `python benchmarks/accelerator.py`, torch {torch.__version__.split("+")[0]}, float32. Counted on the pretend
device of the tests, not timed: kernels launched by one step (statistics, loss and gradients of logits and weights, no
views), waits of the host, floating point operations of the matrix products, bytes that the kernels read and write.
`dense` is the published formulation (benchmarks/dense.py). The last column is a roofline of an A100
({FLOPS / 1e12:.1f} TFLOP/s, {BYTES / 1e9:,.0f} GB/s, {1e6 * LAUNCH:.0f} us per launch, {1e6 * WAIT:.0f} us per wait):
what a kernel takes is the longest of launch, arithmetic and traffic.

{chr(10).join(lines)}
"""
    RESULT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
