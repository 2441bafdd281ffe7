"""Every rival with the same budget: CIFAR-10, 3,000 images, strengths chosen by four held-out runs each.

    python benchmarks/rivals.py --data-root ROOT --runs runs/rivals [--jobs 2]

ROOT holds cifar10. Each method is tuned by `isda tune`: three strengths, then a fourth beyond the edge where the edge
wins, else half-way to the better neighbour; five paired seeds on all it may see follow. Everything is resumed where it
stopped; when all runs are there, benchmarks/results/rivals.md is written.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from csv_files import write_csv
from isda.cli import main as isda
from isda.engine import RunRecord, read_run
from isda.engine.comparison import run_folder_name
from isda.engine.tuning.records import MethodSearchRecord, read_search
from isda.engine.tuning.request import FINAL_FOLDER
from isda.report.statistics import level_of_each, mean_std, paired_difference
from isda.report.wording import plus_minus
from recording import RESULTS, Study, figures_of

BASELINE = "cross-entropy"
SEARCHES: dict[str, dict[str, str]] = {
    "losses": {
        BASELINE: "",
        "isda": "lambda_0=1,3,9",
        "isda:decay=0.99": "",
        "isda-tilted": "",
        "mixup+isda": "",
        "label-smoothing": "smoothing=0.05,0.15,0.45",
        "focal": "gamma=0.5,1.5,4.5",
        "lq": "q=0.1,0.3,0.6",
        "center": "weight=0.001,0.01,0.1",
        "disturb-label": "disturb-label:rate=0.03,0.1,0.3",
        "mixup": "mixup:alpha=0.2,0.6,1.8",
    },
    "dropout": {BASELINE: "dropout=0.1,0.3,0.5"},
}
"""A folder of `isda tune` each: its methods, and what is searched of them; lambda_0 for all that have it."""
TRIALS, SEEDS = 4, 5
SETTINGS = (
    "--data cifar10 --labels 3000 --network fast-cnn --width 0.5 --augment none --batch-size 64 --epochs 20 "
    "--evaluate-every 20 --channels-last"
)
FIGURES = {"error": "test error, %", "nll": "negative log-likelihood", "calibration": "calibration error, %"}


@dataclass(frozen=True)
class Row:
    """A method with its choice: the final runs in the order of their seeds."""

    name: str
    search: MethodSearchRecord
    runs: tuple[RunRecord, ...]

    def values(self, figure: str) -> list[float]:
        """A figure of each run."""
        return [float(run.result[figure]) for run in self.runs if run.result is not None]

    @property
    def choice(self) -> str:
        """The strength that was chosen."""
        chosen = self.search.chosen
        text = ", ".join(f"{name}={value:.3g}" for name, value in chosen.items()) if chosen else "nothing to choose"
        return text if self.search.inside or not chosen else f"{text} (at the edge)"

    @property
    def tried(self) -> str:
        """Held-out error of each strength."""
        trials = sorted(self.search.trials, key=lambda trial: tuple(trial.point.values()))
        return ", ".join(
            f"{'/'.join(f'{value:.3g}' for value in trial.point.values())}: "
            + ("diverged" if trial.value is None else f"{trial.value:.2f}")
            for trial in trials
        )


def tune(study: Study, name: str) -> Path:
    """Search and train what is missing; returns the folder."""
    out = study.runs / name
    methods = SEARCHES[name]
    searches = [word for text in methods.values() if text for word in ("--search", text)]
    root = ["--data-root", str(study.root)] if study.root else []
    budget = ["--trials", str(TRIALS), "--seeds", str(SEEDS), "--jobs", str(study.jobs), "--threads", str(study.jobs)]
    isda(["tune", *SETTINGS.split(), *root, "--methods", *methods, *searches, *budget, "--out", str(out)])
    return out


def rows_of(folder: Path, name: str) -> Iterator[Row]:
    """The methods of one folder of `isda tune`."""
    for search in read_search(folder).methods:
        runs = [read_run(folder / FINAL_FOLDER / run_folder_name(search.chosen_method, seed)) for seed in range(SEEDS)]
        yield Row(search.method if name == "losses" else f"{search.method}, {name}", search, tuple(runs))


def table(rows: Sequence[Row]) -> Iterator[str]:
    """One line per method; all intervals hold together with 95%."""
    base = next(row for row in rows if row.name == BASELINE)
    level = level_of_each((len(rows) - 1) * len(FIGURES))
    for row in rows:
        cells = [row.name, row.choice]
        for figure in FIGURES:
            cells.append(plus_minus(*mean_std(row.values(figure))))
            if row is base:
                cells.append("")
            else:
                cells.append(plus_minus(*paired_difference(row.values(figure), base.values(figure), level)))
        cells.append(f"{statistics.fmean(row.values('seconds')):.0f}")
        yield f"| {' | '.join(cells)} |"


def write(rows: Sequence[Row]) -> None:
    """The tables, and the figures of every run."""
    heads = " | ".join(f"{title} | difference" for title in FIGURES.values())
    text = f"""# Rivals on equal terms: CIFAR-10, 3,000 images

Generated by `python benchmarks/rivals.py`, which runs
`isda tune {SETTINGS}`.
fast-cnn of half width, no image augmentation, one thread per run.
The strength of each method was chosen by {TRIALS} runs (seed {100}) on 5,000 training
images held out: three values, then a fourth beyond the edge where the edge won, else half-way to the better
neighbour. Of mixup+isda lambda_0 was chosen, of isda:decay=0.99 too; dropout is a setting of cross-entropy, whose own
row has none. Mean ± standard deviation over seeds 0 to
{SEEDS - 1}; differences are to cross-entropy on the same seeds, ± half of Student's interval, {(len(rows) - 1) * 3}
simultaneous 95% confidence intervals (Bonferroni); negative is better.
Seconds are of a whole run on a machine with other work, evaluation included: they compare methods roughly.

| method | strength | {heads} | seconds |
|---|---|{"---|---|" * len(FIGURES)}---|
"""
    text += "\n".join(table(rows)) + "\n\nHeld-out error, %, by strength:\n\n| method | tried |\n|---|---|\n"
    text += "\n".join(f"| {row.name} | {row.tried} |" for row in rows if row.search.trials) + "\n"
    (RESULTS / "rivals.md").write_text(text, encoding="utf-8")
    keys = (*FIGURES, "seconds")
    made = [[row.name, row.choice, run.seed, *figures_of(run, keys)] for row in rows for run in row.runs]
    write_csv(RESULTS / "rivals.csv", ["method", "strength", "seed", *keys], made)


def main() -> None:
    """Make what is missing, then write the tables."""
    study = Study.from_arguments(__doc__, "runs/rivals")
    write([row for name in SEARCHES for row in rows_of(tune(study, name), name)])


if __name__ == "__main__":
    main()
