"""Peak memory of one method in a process of its own: python benchmarks/memory.py METHOD COVARIANCE N C A

Prints the bytes by which the peak grew over a process that holds the inputs, the statistics and has run one step of
plain cross-entropy.
"""

from __future__ import annotations

import sys
from pathlib import Path

from steps import Shape, make_step


def peak_bytes() -> int:
    """Largest resident size of this process so far (ru_maxrss would carry over the peak of the parent)."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def extra_peak(method: str, shape: Shape) -> int:
    """How much three steps of ``method`` add to the peak."""
    make_step("cross-entropy", shape)()
    step = make_step(method, shape)
    before = peak_bytes()
    for _ in range(3):
        step()
    return peak_bytes() - before


if __name__ == "__main__":
    name, covariance, *sizes = sys.argv[1:]
    print(extra_peak(name, Shape(covariance, *map(int, sizes))))
