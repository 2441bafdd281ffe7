"""The figures of `make demo`, for README.md: one row per run, in results/demo.csv.

    make demo && python benchmarks/demo.py [runs/demo]

The runs are those of the demo, 200 labelled digits and 10 paired seeds; this script makes none. `make docs`
then writes their table from the file.
"""

from __future__ import annotations

import sys
from pathlib import Path

from analyse import RESULTS
from isda.lab.engine import find_runs
from recording import result_row, write_rows

__all__ = ["main"]


def main(folder: Path) -> None:
    """Write the figures of the runs below a folder."""
    rows = [[record.method, *result_row(record)] for record in find_runs([folder])]
    if not rows:
        raise SystemExit(f"{folder} must hold the runs of `make demo`, got none")
    write_rows(RESULTS / "demo.csv", ["method"], rows)
    print(RESULTS / "demo.csv")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/demo"))
