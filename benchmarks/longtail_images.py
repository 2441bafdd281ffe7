"""Long-tailed CIFAR-10, imbalance 100: head, middle and tail error of each provider, with equal budgets.

    python benchmarks/longtail_images.py --data-root ROOT --runs runs/longtail [--jobs 1]

ROOT holds cifar10.npz, or cifar10. Every method is tuned by `isda tune`: four strengths on held-out images, then five
paired seeds. Everything is resumed where it stopped; when all runs are there,
benchmarks/results/longtail_images.md is written.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from isda.classification.class_sizes import class_parts
from isda.classification.config import Config
from isda.cli import main as isda
from isda.engine.comparing import run_folder_name
from isda.engine.folder.reading import RunRecord, read_run
from isda.engine.tuning.record import MethodSearch, read_search
from isda.engine.tuning.retraining import FINAL_FOLDER
from isda.report.method_summary import level_of_each
from isda.report.statistics import mean_std, paired_difference
from isda.report.wording import plus_minus
from recording import RESULTS, Study

BASELINE = "cross-entropy"
METHODS: dict[str, str] = {
    BASELINE: "",
    "isda": "lambda_0=0.5,1,2,4",
    "logit-adjustment": "logit-adjustment:tau=0.5,1,1.5,2",
    "logit-adjustment+isda": "",
    "ldam": "s=1,2,4,8",
    "ldam:drw=true": "",
    "class-balanced": "class-balanced:beta=0.9,0.99,0.999,0.9999",
    "risda": "",
    "metasaug": "",
}
"""What is searched of each; lambda_0 of all that augment features, s of both with LDAM's margins."""
TRIALS, SEEDS = 4, 5
SETTINGS = (
    "--imbalance 100 --labels 1500 --held-out 3000 --network fast-cnn --width 0.25 --augment none --batch-size 64 "
    "--epochs 15 --evaluate-every 15 --channels-last"
)
FIGURES = {"error": "error", "error_head": "head", "error_middle": "middle", "error_tail": "tail"}


@dataclass(frozen=True)
class Row:
    """A method with its choice: the final runs in the order of their seeds."""

    search: MethodSearch
    runs: tuple[RunRecord, ...]

    @property
    def name(self) -> str:
        """The method as it was searched."""
        return self.search.method

    def values(self, figure: str) -> list[float]:
        """A figure of each run."""
        return [float(run.result[figure]) for run in self.runs if run.result is not None]

    @property
    def choice(self) -> str:
        """The strength that was chosen."""
        chosen = self.search.chosen
        text = ", ".join(f"{name}={value:.4g}" for name, value in chosen.items()) if chosen else "nothing to choose"
        return text if self.search.inside or not chosen else f"{text} (at the edge)"

    @property
    def tried(self) -> str:
        """Held-out error of each strength."""
        trials = sorted(self.search.trials, key=lambda trial: tuple(trial.point.values()))
        return ", ".join(
            f"{'/'.join(f'{value:.4g}' for value in trial.point.values())}: "
            + ("diverged" if trial.value is None else f"{trial.value:.2f}")
            for trial in trials
        )


def tune(study: Study, data: str) -> Path:
    """Search and train what is missing; returns the folder."""
    searches = [word for text in METHODS.values() if text for word in ("--search", text)]
    root = ["--data-root", str(study.root)] if study.root else []
    budget = ["--trials", str(TRIALS), "--widen", "0", "--seeds", str(SEEDS), "--jobs", str(study.jobs)]
    where = ["--out", str(study.runs), "--threads", str(study.jobs)]
    isda(["tune", "--data", data, *SETTINGS.split(), *root, "--methods", *METHODS, *searches, *budget, *where])
    return study.runs


def rows_of(folder: Path) -> Iterator[Row]:
    """The methods of the folder."""
    for search in read_search(folder).methods:
        runs = [read_run(folder / FINAL_FOLDER / run_folder_name(search.chosen_method, seed)) for seed in range(SEEDS)]
        yield Row(search, tuple(runs))


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
    config = Config.read(rows[0].runs[0].folder / "config.json")
    counts, parts = config.class_counts, class_parts(config.class_counts)
    told = "; ".join(f"{name} {', '.join(str(counts[index]) for index in part)}" for name, part in parts.items())
    heads = " | ".join(f"{title}, % | difference" for title in FIGURES.values())
    comparisons = (len(rows) - 1) * len(FIGURES)
    text = f"""# Long-tailed CIFAR-10, imbalance 100

Generated by `python benchmarks/longtail_images.py`, which runs
`isda tune {SETTINGS}`.
fast-cnn of a quarter of its width, no image augmentation, one thread per run; {sum(counts)} training images, by class:
{told}. The test set is balanced (10,000 images).
The strength of each method was chosen among {TRIALS} by one run each (seed 100), by the error on balanced training
images that were held out; cross-entropy has none to choose. Mean ± standard deviation over seeds 0 to {SEEDS - 1};
differences, in points, are to cross-entropy on the same seeds, ± half of Student's interval, all {comparisons}
intervals together 95% (Bonferroni); negative is better. Seconds are of a whole run on a machine with other work: they
compare methods roughly.

| method | strength | {heads} | seconds |
|---|---|{"---|---|" * len(FIGURES)}---|
"""
    text += "\n".join(table(rows)) + "\n\nHeld-out error, %, by strength:\n\n| method | tried |\n|---|---|\n"
    text += "\n".join(f"| {row.name} | {row.tried} |" for row in rows if row.search.trials) + "\n"
    (RESULTS / "longtail_images.md").write_text(text, encoding="utf-8")
    with (RESULTS / "longtail_images.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["method", "strength", "seed", *FIGURES, "nll", "calibration", "seconds"])
        for row in rows:
            for run in row.runs:
                assert run.result is not None
                figures = [run.result[key] for key in (*FIGURES, "nll", "calibration", "seconds")]
                writer.writerow([row.name, row.choice, run.seed, *figures])


def main() -> None:
    """Make what is missing, then write the tables."""
    study = Study.from_arguments(__doc__, "runs/longtail")
    data = study.root / "cifar10.npz" if study.root is not None else Path("missing")
    write(list(rows_of(tune(study, str(data) if data.is_file() else "cifar10"))))


if __name__ == "__main__":
    main()
