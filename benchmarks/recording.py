"""What the scripts of evidence share: methods x seeds by name, and figures of finished runs kept beside their table."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from analyse import RESULTS
from csv_files import write_csv
from isda.lab.engine import RunRecord, RunSettings, Task, compare, read_run
from isda.lab.engine.comparison import run_folder_name
from isda.lab.engine.executors.runs import Watcher
from isda.lab.train import image_task

__all__ = [
    "COLUMNS",
    "RESULTS",
    "RunLines",
    "Study",
    "figures_of",
    "final_strength",
    "options_of",
    "result_row",
    "study_parser",
    "write_rows",
]

COLUMNS = ("error", "nll", "calibration", "train_loss", "seconds")


class RunLines(Watcher):
    """One line per finished run."""

    def run_finished(self, folder: Path, problem: str | None) -> None:
        print(folder, problem or f"{_error_of(folder):.2f}%", flush=True)


def study_parser(description: str | None, runs: str) -> argparse.ArgumentParser:
    """The options that all studies have."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0] if description else None)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--runs", type=Path, default=Path(runs))
    parser.add_argument("--jobs", type=int, default=2)
    return parser


@dataclass(frozen=True)
class Study:
    """Where runs are, and how they are made."""

    runs: Path
    root: Path | None
    jobs: int

    @classmethod
    def from_arguments(cls, description: str | None, runs: str) -> Study:
        """As the command line says."""
        return cls.of(study_parser(description, runs).parse_args())

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Study:
        """From the arguments of `study_parser`."""
        return cls(arguments.runs, arguments.data_root, arguments.jobs)

    def errors(
        self,
        settings: RunSettings,
        methods: Sequence[str],
        seeds: Sequence[int],
        out: str,
        task_of: Callable[[str], Task] = image_task,
    ) -> dict[str, float]:
        """Mean headline figure of each method, the error of classifiers, after training what is not yet there."""
        compare(
            settings,
            methods,
            seeds,
            self.runs / out,
            task_of=task_of,
            jobs=self.jobs,
            data_root=self.root,
            watcher=RunLines(),
        )
        folder = self.runs / out
        return {
            method: statistics.fmean(_error_of(folder / run_folder_name(method, seed)) for seed in seeds)
            for method in methods
        }


def _error_of(folder: Path) -> float:
    value = read_run(folder).value
    assert value is not None
    return value


def figures_of(record: RunRecord, keys: Iterable[str]) -> list[object]:
    """Figures of a finished run, for a row of a csv file."""
    if record.result is None:
        raise ValueError(f"runs must be finished, got {record.folder} without a result")
    return [record.result[key] for key in keys]


def final_strength(record: RunRecord) -> float:
    """Lambda of the last epoch; 0 without ISDA."""
    last = (record.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1]
    return float(json.loads(last).get("strength", 0.0))


def options_of(record: RunRecord) -> str:
    """The options of a run's method, for a cell of a csv file."""
    return json.dumps(record.method_options, sort_keys=True)


def result_row(record: RunRecord) -> list[object]:
    """Options, seed and figures of a finished run, for a row of the csv file."""
    return [options_of(record), record.seed, *figures_of(record, COLUMNS)]


def write_rows(path: Path, names: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A csv file of runs: what identifies them, then what `result_row` says."""
    write_csv(path, [*names, "options", "seed", *COLUMNS], rows)
