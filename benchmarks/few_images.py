"""Few images, supervised: where does ISDA lower the error? Questions 1 and 5 (wrong labels) of benchmarks/plan.md.

    python benchmarks/few_images.py --data-root ROOT --runs runs/few-images [--jobs 2] [--settings NAME] [--seeds 10 11]

ROOT holds cifar10 and cifar100. Every finished run is appended to benchmarks/results/few_images.csv and not made again,
also where its folder is lost; an interrupted one is resumed. After each setting few_images.md is written.
--settings and --seeds make only some of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from analyse import marked
from csv_files import append_csv, read_csv
from isda.lab.data import load
from isda.lab.engine import read_run
from isda.lab.engine.comparison import Planner, run_folder_name, run_planned
from isda.lab.engine.executors.runs import RunsFailed, Watcher
from isda.lab.tasks.classification.settings import ClassificationSettings
from isda.lab.train import image_task
from recording import RESULTS, Study, figures_of, final_strength, study_parser

SEEDS = (10, 11, 12, 13, 14)
ISDA = ("isda:lambda_0=0.5",)
METHODS = ("cross-entropy", *ISDA, "mixup")
SHARED = ClassificationSettings(network="fast-cnn", width=0.5, batch_size=64, channels_last=True)
EPOCHS = {1000: 40, 3000: 20, 10000: 12}
WRONG = {20: 0.2, 40: 0.4}
"""Percentages of wrong labels."""
TABLE = RESULTS / "few_images.csv"
FIGURES, OTHERS = ("error", "nll", "calibration"), ("train_loss", "seconds")
COLUMNS = ("setting", "method", "seed", *FIGURES, "strength", *OTHERS)
"""The primary figure comes first: `isda report` takes it as such."""


@dataclass(frozen=True)
class Setting:
    """A layout of methods x seeds on the same images."""

    name: str
    settings: ClassificationSettings
    methods: tuple[str, ...] = METHODS
    wrong: float = 0.0
    """The share of labels that are wrong."""

    @property
    def folder(self) -> str:
        """A folder name."""
        return self.name.lower().replace(",", "").replace("%", "").replace(" ", "-")


def images_of(data: str, images: int, augment: str, epochs: int | None = None) -> ClassificationSettings:
    """The settings of a number of images."""
    epochs = epochs or EPOCHS[images]
    return replace(SHARED, data=data, labels=images, augment=augment, epochs=epochs, evaluate_every=epochs)


def _settings() -> list[Setting]:
    names = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
    augmentations = {"none": "", "crop-flip": ", crops and flips"}
    made = []
    for images, sets in {3000: names, 1000: {"cifar10": "CIFAR-10"}, 10000: names}.items():
        for data, name in sets.items():
            for augment, words in augmentations.items():
                made.append(Setting(f"{name}, {images:,} images{words}", images_of(data, images, augment)))
        if images == 1000:
            plain = images_of("cifar10", 3000, "none")
            for percent, share in WRONG.items():
                made.append(Setting(f"CIFAR-10, 3,000 images, {percent}% wrong labels", plain, wrong=share))
            long = images_of("cifar10", 3000, "crop-flip", epochs=100)
            name = "CIFAR-10, 3,000 images, crops and flips, 100 epochs"
            made.append(Setting(name, long, ("cross-entropy", *ISDA)))
    return made


SETTINGS = _settings()


def wrong_labels(study: Study, data: str, share: float) -> Path:
    """A folder with the data set in which this share of the training labels is another class, equally often each."""
    path = study.runs / f"wrong-{share:g}" / f"{data}.npz"
    if not path.exists():
        loaded = load(data, root=study.root)
        chance, labels = np.random.default_rng(0), loaded.y_train.numpy().copy()
        chosen = chance.permutation(len(labels))[: round(share * len(labels))]
        shifts = chance.integers(1, len(loaded.classes), len(chosen))
        labels[chosen] = (labels[chosen] + shifts) % len(loaded.classes)
        path.parent.mkdir(parents=True, exist_ok=True)
        x_train, x_test = (np.asarray(part[:]).transpose(0, 2, 3, 1) for part in (loaded.x_train, loaded.x_test))
        y_test, classes = loaded.y_test.numpy(), np.array(loaded.classes)
        np.savez(path, x_train=x_train, y_train=labels, x_test=x_test, y_test=y_test, classes=classes)
    return path.parent


class Recorder(Watcher):
    """Appends each finished run of a setting to the table."""

    def __init__(self, setting: Setting, planned: dict[Path, tuple[str, int]], table: Path | None) -> None:
        self.setting, self.planned, self.table = setting, planned, table

    def run_finished(self, folder: Path, problem: str | None) -> None:
        """A line, and a row where there is a result."""
        method, seed = self.planned[folder]
        print(self.setting.name, method, seed, problem or "", flush=True)
        if problem is None and self.table is not None:
            record = read_run(folder)
            figures = [*figures_of(record, FIGURES), final_strength(record), *figures_of(record, OTHERS)]
            append_csv(self.table, COLUMNS, [[self.setting.name, method, seed, *figures]])


def missing(setting: Setting, table: Path = TABLE, seeds: Sequence[int] = SEEDS) -> list[tuple[str, int]]:
    """Methods and seeds that the table lacks, seed by seed."""
    rows = read_csv(table) if table.exists() else []
    there = {(row["method"], int(row["seed"])) for row in rows if row["setting"] == setting.name}
    return [(method, seed) for seed in seeds for method in setting.methods if (method, seed) not in there]


def train(study: Study, setting: Setting, pairs: Sequence[tuple[str, int]], table: Path | None = TABLE) -> None:
    """Make these runs; one whose loss is not finite is missing in the table. Without a table only their folders are."""
    settings, out = setting.settings, study.runs / setting.folder
    root = wrong_labels(study, settings.data, setting.wrong) if setting.wrong else study.root
    planner = Planner(task_of=image_task, data_root=root)
    planned = {out / run_folder_name(method, seed): (method, seed) for method, seed in pairs}
    runs = [
        planner.plan(replace(settings, method=method, seed=seed), folder) for folder, (method, seed) in planned.items()
    ]
    try:
        run_planned(runs, study.jobs, Recorder(setting, planned, table))
    except RunsFailed as failed:
        if not all(problem.diverged for problem in failed.problems.values()):
            raise


def finished(study: Study, settings: Sequence[Setting]) -> Iterator[tuple[Setting, str, int, Path]]:
    """Setting, method, seed and folder of the finished runs whose folders are there."""
    for setting in settings:
        for seed in SEEDS:
            for method in setting.methods:
                folder = study.runs / setting.folder / run_folder_name(method, seed)
                if folder.is_dir() and read_run(folder).result is not None:
                    yield setting, method, seed, folder


def write() -> None:
    """The page of what is there."""
    text = f"""# Few images, supervised

Generated by `python benchmarks/few_images.py`; planned in `benchmarks/plan.md`, questions 1 and 5. fast-cnn of half
width, batch 64; 1,000 images 40 epochs, 3,000 images 20, 10,000 images 12. Paired seeds from {SEEDS[0]} to {SEEDS[-1]},
one thread per run, all test images, mean of the last twelfth of the epochs, as the recipe has it. mixup: α = 1. No
strength was searched. Wrong labels: of training images only.
"""
    names = dict.fromkeys(row["setting"] for row in read_csv(TABLE))
    for name in names:
        text += f"\n## {name}\n\n{marked('few_images', name)}\n"
    (RESULTS / "few_images.md").write_text(text, encoding="utf-8")


def chosen(description: str | None, settings: Sequence[Setting]) -> tuple[Study, list[Setting], Sequence[int]]:
    """What the command line asks for: the study, some of the settings, and seeds."""
    parser = study_parser(description, "runs/few-images")
    names = [setting.name for setting in settings]
    parser.add_argument(
        "--settings", nargs="+", choices=names, default=names, metavar="NAME", help="; ".join(names).replace("%", "%%")
    )
    parser.add_argument("--seeds", nargs="+", type=int, choices=SEEDS, default=SEEDS)
    arguments = parser.parse_args()
    return Study.of(arguments), [own for own in settings if own.name in arguments.settings], arguments.seeds


def main() -> None:
    """Make what is missing, setting by setting."""
    study, settings, seeds = chosen(__doc__, SETTINGS)
    for setting in settings:
        pairs = missing(setting, seeds=seeds)
        if pairs:
            train(study, setting, pairs)
            write()


if __name__ == "__main__":
    main()
