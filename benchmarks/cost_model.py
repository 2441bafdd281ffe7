"""Time and memory of a loss step as formulas of its sizes; benchmarks/cost.py measures beside them, docs/cost.md shows
them.

A formula is written once, as the text that the page shows: terms joined by " + ", each a product of numbers and sizes.
Operations were derived by hand from the matrix products of a step. Bytes and launches are those of the code as it is:
the coefficients were fitted to counts (benchmarks/cost_counter.py) and rounded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from cost_counter import Work
from isda.covariance.memory import diagonal_bytes, full_bytes, low_rank_bytes
from isda.functional.grouping import LOOP_FROM_DIM, WORKSPACE_BYTES
from isda.functional.tilt import FEW

COVARIANCES = ("full", "shrunk", "low_rank", "diagonal", "shared", "within", "identity")
SEARCH = "2 m² N A + 2 m l N A + 20 m² N + 72 m N"
"""Tables of m classes per row, twice (l = m - 1), and four Newton steps."""
TABLES = "8 N C² + 18 m² N + 72 m N"

FLOPS: dict[tuple[str, str], str] = {
    ("full", "jensen"): "2 R K C A² + 2 U A²",
    ("shrunk", "jensen"): "2 R K C A² + 2 U A² + 4 C A² + 16 K C A",
    ("low_rank", "jensen"): "8 r K C A + 10 K C A",
    ("diagonal", "jensen"): "10 K C A",
    ("shared", "jensen"): "2 N A² + 4 C A² + 6 K C A",
    ("within", "jensen"): "2 N A² + 4 C A² + 6 K C A",
    ("identity", "jensen"): "6 K C A",
    ("full", "rows"): f"2 K C A² + 2 U A² + 18 N C A + {SEARCH}",
    ("shrunk", "rows"): f"2 K C A² + 2 U A² + 2 C A² + 4 K C A + 18 N C A + {SEARCH}",
    ("low_rank", "projected"): f"8 r K C A + 4 K C A + 18 N C A + {SEARCH}",
    ("low_rank", "rows"): f"8 r K C A + 4 K C A + 16 N C A + 48 r N A + 16 r m N A + {SEARCH}",
    ("diagonal", "rows"): f"4 K C A + 16 N C A + {SEARCH}",
    ("shared", "rows"): f"2 N A² + 4 C A² + 18 N C A + {SEARCH}",
    ("within", "rows"): f"2 N A² + 4 C A² + 18 N C A + {SEARCH}",
    ("identity", "rows"): f"16 N C A + {SEARCH}",
    ("full", "tables"): f"2 K C A² + 2 U A² + 4 K C² A + {TABLES}",
    ("low_rank", "tables"): f"8 r K C A + 6 K C² A + 12 r K C² + {TABLES}",
    ("diagonal", "tables"): f"6 K C² A + {TABLES}",
    ("shared", "tables"): f"2 N A² + 2 C A² + 4 C² A + {TABLES}",
    ("within", "tables"): f"2 N A² + 2 C A² + 4 C² A + {TABLES}",
    ("identity", "tables"): f"6 C² A + {TABLES}",
}
NUMBERS: dict[tuple[str, str], str] = {
    ("full", "jensen"): "15 K C A + 3 K A² + 104 C A + 14 N A + 17 N C",
    ("shrunk", "jensen"): "13 K C A + 2 K A² + 4 C A² + 90 C A + 257 K C",
    ("low_rank", "jensen"): "14 r K A + 50 r K C + 101 C A + 55 N A",
    ("diagonal", "jensen"): "33 C A + 25 N A + 57 K C + 9 N C",
    ("shared", "jensen"): "7 A² + 30 C A + 22 N A + 35 K C + 21 N C",
    ("within", "jensen"): "8 A² + 31 C A + 20 N A + 39 K C + 22 N C",
    ("identity", "jensen"): "25 C A + 35 K C + 20 N C",
    ("full", "rows"): "14 K C A + 5 K A² + 67 C A + 48 m² N + 235 N C",
    ("shrunk", "rows"): "19 K C A + 1 K A² + 3 C A² + 276 A² + 35 m N A + 93 m² N + 494 N C",
    ("low_rank", "projected"): "5 K C A + 38 r K C + 77 m N A",
    ("low_rank", "rows"): "104 C A + 204 r N A + 30 r K C + 95 m² N",
    ("diagonal", "rows"): "35 C A + 18 m N A + 88 m² N + 131 N C",
    ("shared", "rows"): "6 A² + 24 C A + 18 m N A + 92 m² N + 127 N C",
    ("within", "rows"): "6 A² + 26 C A + 18 m N A + 92 m² N + 127 N C",
    ("identity", "rows"): "20 C A + 12 m N A + 87 m² N + 127 N C",
    ("full", "tables"): "7 K C A + 3 K A² + 23 C A + 16 N A + 58 m² N + 491 N C",
    ("low_rank", "tables"): "2 r K A + 77 N A + 61 m² N + 436 N C",
    ("diagonal", "tables"): "53 K C² + 105 C A + 23 N A + 60 m² N + 437 N C",
    ("shared", "tables"): "4 A² + 135 C² + 22 N A + 58 m² N + 464 N C",
    ("within", "tables"): "4 A² + 256 C² + 20 N A + 59 m² N + 456 N C",
    ("identity", "tables"): "16 C A + 58 m² N + 469 N C",
}
"""Numbers of 4 bytes that operations read and write."""
LAUNCHES: dict[str, dict[str, int]] = {
    "jensen": dict(zip(COVARIANCES, (55, 200, 146, 87, 89, 84, 70), strict=True)),
    "rows": dict(zip(COVARIANCES, (330, 430, 500, 330, 325, 320, 290), strict=True)),
    "projected": {"low_rank": 390},
    "tables": dict(zip(COVARIANCES, (245, 340, 345, 259, 249, 245, 230), strict=True)),
}
"""On a CPU, without the loop over classes of full matrices."""


@dataclass(frozen=True)
class Step:
    """A batch of N rows with labels of K classes, C classes, A features."""

    covariance: str
    bound: str
    n: int
    c: int
    a: int
    rank: int = 16
    on_cpu: bool = True

    @property
    def present(self) -> int:
        """K, at least: every row has a class of its own, or every class occurs."""
        return min(self.n, self.c)

    @property
    def way(self) -> str:
        """The published bound, or the tilted one by tables per matrix or by products per row; where W Sigma fits the
        workspace, those of low rank are with it.
        """
        if self.bound == "jensen":
            return "jensen"
        matrices = 1 if self.covariance in ("shared", "within", "identity") else self.present
        if matrices * self.c <= 4 * self.n:
            return "tables"
        fits = 4 * self.present * self.c * self.a <= WORKSPACE_BYTES
        return "projected" if self.covariance == "low_rank" and fits else "rows"

    def sizes(self) -> dict[str, float]:
        """What the letters of the formulas stand for."""
        classes, few = self.present, min(FEW, self.c)
        again = 2 if self.way == "jensen" and 4 * classes * self.c * self.a > WORKSPACE_BYTES else 1
        padded = self.c * math.ceil(self.n / self.c) if self.n >= self.c else self.n
        named = {"N": self.n, "C": self.c, "A": self.a, "K": classes, "r": self.rank, "m": few, "l": few - 1}
        return {**named, "R": again, "U": padded}

    def work(self) -> Work:
        """By the formulas."""
        key, sizes = (self.covariance, self.way), self.sizes()
        launches = float(LAUNCHES[self.way][self.covariance])
        if self.on_cpu and self.covariance in ("full", "shrunk") and self.n < self.c:
            launches += self.present * (6 if self.a >= LOOP_FROM_DIM else 1)
        return Work(value(FLOPS[key], sizes), 4 * value(NUMBERS[key], sizes), launches)

    def state_bytes(self) -> int:
        """Of the statistics."""
        one = self.a * self.a * 4
        return {
            "full": full_bytes(self.c, self.a),
            "shrunk": full_bytes(self.c, self.a),
            "low_rank": low_rank_bytes(self.c, self.a, self.rank),
            "diagonal": diagonal_bytes(self.c, self.a),
            "shared": one + 8 * self.a,
            "within": one + 8 * self.c * self.a,
            "identity": 0,
        }[self.covariance] + 8 * self.c

    def exchanged_bytes(self, processes: int) -> tuple[int, int]:
        """What a process receives in an update if processes exchange features and labels, or statistics."""
        return (processes - 1) * self.n * (4 * self.a + 8), (processes - 1) * self.state_bytes()

    def __str__(self) -> str:
        return f"{self.covariance}, {self.bound}, N={self.n} C={self.c} A={self.a}"


def value(formula: str, sizes: dict[str, float]) -> float:
    """Of a formula.

    Example:
        >>> value("2 K A² + 3 N", {"K": 2, "A": 10, "N": 1})
        403.0
    """
    return sum(math.prod(_factor(factor, sizes) for factor in term.split()) for term in formula.split(" + "))


def _factor(text: str, sizes: dict[str, float]) -> float:
    power = 2 if text.endswith("²") else 1
    name = text.rstrip("²")
    return float(sizes.get(name, 0) if name.isalpha() else name) ** power


class Machine(NamedTuple):
    """Constants: the time of a step is their sum over its work."""

    flops_per_second: float
    bytes_per_second: float
    seconds_per_launch: float

    def seconds(self, work: Work) -> float:
        """Of a step."""
        return (
            work.flops / self.flops_per_second
            + work.bytes / self.bytes_per_second
            + work.launches * self.seconds_per_launch
        )


A100 = Machine(19.5e12, 1.555e12, 5e-6)
"""From its data sheet, in float32; launches as in benchmarks/accelerator.py."""


def fitted(works: list[Work], seconds: list[float]) -> Machine:
    """The constants with the least sum of squared relative errors."""
    relative = np.array(works) / np.array(seconds)[:, None]
    scale = relative.max(axis=0)
    inverse = nnls(relative / scale, np.ones(len(works)))[0] / scale
    with np.errstate(divide="ignore"):
        return Machine(1 / inverse[0], 1 / inverse[1], float(inverse[2]))
