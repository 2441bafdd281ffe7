"""The cost of a loss step beside its formulas: python benchmarks/cost.py writes results/cost.csv and results/cost.md.

Operations, bytes and launches are counted. The time is CPU time of one thread, the median of a few steps; it is
predicted from the formulas alone and three constants of the machine, which are fitted to the same measurements. Takes
two minutes.
"""

from __future__ import annotations

import csv
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from core import markdown
from cost_counter import count, make_step
from cost_model import Machine, Step, fitted
from steps import Shape

RESULTS = Path(__file__).parent / "results"
POINTS = (
    Step("full", "jensen", 128, 10, 640),
    Step("full", "jensen", 128, 100, 64),
    Step("full", "jensen", 128, 100, 640),
    Step("full", "jensen", 4096, 19, 512),
    Step("shrunk", "jensen", 128, 100, 256),
    Step("low_rank", "jensen", 64, 200, 512),
    Step("low_rank", "jensen", 128, 1000, 512),
    Step("diagonal", "jensen", 128, 100, 640),
    Step("diagonal", "jensen", 128, 1000, 2048),
    Step("diagonal", "jensen", 256, 20_000, 256),
    Step("shared", "jensen", 128, 1000, 512),
    Step("within", "jensen", 256, 20_000, 256),
    Step("identity", "jensen", 128, 1000, 2048),
    Step("full", "tilted", 128, 10, 640),
    Step("full", "tilted", 128, 100, 64),
    Step("full", "tilted", 4096, 19, 512),
    Step("diagonal", "tilted", 128, 100, 640),
    Step("diagonal", "tilted", 128, 1000, 2048),
    Step("within", "tilted", 128, 2000, 512),
    Step("low_rank", "tilted", 128, 100, 512),
)
RUNS = 7


def measured(point: Step) -> dict[str, Any]:
    """What a step takes, counted and timed."""
    settings = {"rank": point.rank} if point.covariance == "low_rank" else {}
    step = make_step(point.bound, Shape(point.covariance, point.n, point.c, point.a), **settings)
    work, seconds = count(step), []
    for _ in range(RUNS):
        started = time.process_time()
        step()
        seconds.append(time.process_time() - started)
    return {
        "covariance": point.covariance,
        "bound": point.bound,
        "N": point.n,
        "C": point.c,
        "A": point.a,
        "flops": int(work.flops),
        "bytes": int(work.bytes),
        "launches": int(work.launches),
        "seconds": round(statistics.median(seconds), 6),
    }


def point_of(row: dict[str, Any]) -> Step:
    """The step of a row of results/cost.csv."""
    return Step(row["covariance"], row["bound"], int(row["N"]), int(row["C"]), int(row["A"]))


def machine_of(rows: list[dict[str, Any]]) -> Machine:
    """The constants of the machine that the rows were measured on."""
    return fitted([point_of(row).work() for row in rows], [float(row["seconds"]) for row in rows])


def figure(number: float) -> str:
    """Three digits, and no exponent for a large number."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def compared(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Counts and times beside those of the formulas."""
    machine, table = machine_of(rows), []
    for row in rows:
        point = point_of(row)
        work, seconds = point.work(), float(row["seconds"])
        predicted = machine.seconds(work)
        table.append(
            {
                "step": str(point),
                "GFLOP": figure(int(row["flops"]) / 1e9),
                "by formula": figure(work.flops / 1e9),
                "MB": figure(int(row["bytes"]) / 1e6),
                "MB by formula": figure(work.bytes / 1e6),
                "launches": row["launches"],
                "launches by formula": f"{work.launches:.0f}",
                "ms": figure(1e3 * seconds),
                "ms predicted": figure(1e3 * predicted),
                "predicted / measured": f"{predicted / seconds:.2f}",
            }
        )
    return table


def constants_text(rows: list[dict[str, Any]]) -> str:
    """The constants, in a sentence."""
    machine = machine_of(rows)
    near = sum(0.7 <= float(row["predicted / measured"]) <= 1.3 for row in compared(rows))
    return (
        f"Constants fitted to these measurements: {machine.flops_per_second / 1e9:.0f} GFLOP/s, "
        f"{machine.bytes_per_second / 1e9:.1f} GB/s and {1e6 * machine.seconds_per_launch:.1f} µs per launch. "
        f"{near} of {len(rows)} predictions are within 30%."
    )


def main() -> None:
    """Measure everything and write the results."""
    torch.set_num_threads(1)
    console, rows = Console(stderr=True), []
    for point in POINTS:
        rows.append(measured(point))
        console.print(rows[-1])
    with open(RESULTS / "cost.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    version = torch.__version__.split("+")[0]
    text = f"""# The cost of a loss step, by formula and measured

Written by `make bench-cost` (benchmarks/cost.py). CPU time of one thread, float32, torch {version}. The formulas are
those of benchmarks/cost_model.py, shown in [docs/cost.md](../../docs/cost.md).

{constants_text(rows)}

{markdown(compared(rows))}
"""
    (RESULTS / "cost.md").write_text(text, encoding="utf-8")
    Console().print(text)


if __name__ == "__main__":
    main()
