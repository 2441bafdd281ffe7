"""What the scripts of evidence share: a line per run, and the figures of finished runs kept beside their table."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from isda.report.runs import RunRecord
from isda.train.comparing import Watcher

__all__ = ["COLUMNS", "RESULTS", "Lines", "error_of", "keep", "result_row", "write_rows"]

RESULTS = Path(__file__).parent / "results"
COLUMNS = ("error", "nll", "calibration", "train_loss", "seconds")


class Lines(Watcher):
    """One line per finished run."""

    def run_finished(self, folder: Path, problem: str | None) -> None:
        print(folder, problem or f"{error_of(folder):.2f}%", flush=True)


def error_of(folder: Path) -> float:
    """The error of a finished run, in percent."""
    return float(json.loads((folder / "result.json").read_text(encoding="utf-8"))["error"])


def keep(record: RunRecord, folder: Path) -> None:
    """Copy a run's metrics to where they are committed, below the name of its method."""
    kept = folder / record.folder.parent.name
    kept.mkdir(parents=True, exist_ok=True)
    shutil.copy(record.folder / "metrics.jsonl", kept / f"seed-{record.seed}.jsonl")


def result_row(record: RunRecord) -> list[object]:
    """Options, seed and figures of a finished run, for a row of the csv file."""
    if record.result is None:
        raise ValueError(f"runs must be finished, got {record.folder} without a result")
    return [json.dumps(record.method_options, sort_keys=True), record.seed, *(record.result[key] for key in COLUMNS)]


def write_rows(path: Path, names: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A csv file of runs: what identifies them, then what `result_row` says."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*names, "options", "seed", *COLUMNS])
        writer.writerows(rows)
