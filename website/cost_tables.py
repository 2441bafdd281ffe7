"""The tables of docs/cost.md: python website/cost_tables.py writes them.

The formulas are those of benchmarks/cost_model.py, the measurements those of benchmarks/results/cost.csv.

A page marks where a table belongs: <!-- cost: NAME --> ... <!-- end of cost -->.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from core import markdown  # noqa: E402
from cost import compared, constants_text, figure, machine_of  # noqa: E402
from cost_model import A100, FLOPS, LAUNCHES, NUMBERS, Step  # noqa: E402
from memory_table import size_text  # noqa: E402

__all__ = ["PAGE", "written"]

PAGE = ROOT / "docs" / "cost.md"
WAYS = {
    "jensen": "published",
    "rows": "tilted, many classes",
    "projected": "tilted, many classes, 4 K C A ≤ 32 MB",
    "tables": "tilted, few classes",
}
LAUNCHED_ON_GPU = {"jensen": 65, "tilted": 320}
"""Of full and diagonal covariances, see benchmarks/results/accelerator.md."""
CASES = {
    "ImageNet-21k": (256, 21_841, 2048, ("low_rank", "diagonal", "within")),
    "100,000 faces": (256, 100_000, 512, ("low_rank", "diagonal", "within")),
    "Cityscapes, 2 images of 1024 x 2048 pixels": (2 * 1024 * 2048, 19, 512, ("full", "diagonal")),
}
PROCESSES = (8, 64)


def rows() -> list[dict[str, Any]]:
    """The measurements."""
    with open(ROOT / "benchmarks" / "results" / "cost.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def formulas() -> str:
    """Operations, numbers moved and launches of every covariance and bound."""
    table = [
        {
            "covariance": covariance,
            "bound": WAYS[way],
            "floating point operations": flops,
            "numbers read and written": NUMBERS[covariance, way],
            "launches": LAUNCHES[way][covariance],
        }
        for (covariance, way), flops in FLOPS.items()
    ]
    return markdown(table)


def measurements() -> str:
    """Counts and times beside the formulas."""
    return f"{constants_text(rows())}\n\n{markdown(compared(rows()))}"


def predictions() -> str:
    """Cases that were not measured."""
    cpu, table = machine_of(rows()), []
    for name, (n, c, a, covariances) in CASES.items():
        for covariance in covariances:
            for bound in ("jensen", "tilted"):
                step = Step(covariance, bound, n, c, a)
                work = step.work()
                on_gpu = replace(step, on_cpu=False).work()._replace(launches=LAUNCHED_ON_GPU[bound])
                table.append(
                    {
                        "case": name,
                        "covariance": covariance,
                        "bound": bound,
                        "statistics": size_text(step.state_bytes()),
                        "weights": size_text(4 * c * a),
                        "features": size_text(4 * n * a),
                        "logits": size_text(4 * n * c),
                        "TFLOP": figure(work.flops / 1e12),
                        "GB moved": figure(work.bytes / 1e9),
                        "one CPU core, s": figure(cpu.seconds(work)),
                        "A100, ms": figure(1e3 * A100.seconds(on_gpu)),
                    }
                )
    return markdown(table)


def exchange() -> str:
    """Bytes that a process receives in an update."""
    table = []
    for name, (n, c, a, covariances) in CASES.items():
        for covariance in covariances:
            cells: dict[str, Any] = {"case": name, "covariance": covariance}
            for processes in PROCESSES:
                both = Step(covariance, "jensen", n, c, a).exchanged_bytes(processes)
                for way, count in zip(("features", "statistics"), both, strict=True):
                    text = size_text(count)
                    cells[f"{processes} GPUs, {way}"] = f"**{text}**" if count == min(both) else text
            table.append(cells)
    return markdown(table)


BLOCKS: dict[str, Callable[[], str]] = {
    block.__name__: block for block in (formulas, measurements, predictions, exchange)
}


def written(text: str) -> str:
    """The text of the page with the tables in their places."""
    place = re.compile(r"(<!-- cost: (\w+) -->\n).*?(<!-- end of cost -->)", re.DOTALL)
    return place.sub(lambda found: f"{found[1]}\n{BLOCKS[found[2]]()}\n\n{found[3]}", text)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
