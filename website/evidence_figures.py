"""The tables of docs/evidence that are shorter than those of benchmarks/results; `figures.py` writes them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import analyse  # noqa: E402
import problem_tables  # noqa: E402
from csv_files import read_csv  # noqa: E402
from figure_tables import FigureTable  # noqa: E402
from isda.lab.report.statistics import LEVEL, Interval, mean_std  # noqa: E402
from isda.lab.report.wording import difference_text, intervals_text, number, sentence  # noqa: E402
from pooling import Effect, mean_ranks, pooled_effect  # noqa: E402
from problem_methods import RIVALS  # noqa: E402
from problem_tables import DIRECTION, METHODS, Figures, family, means, names, pooled, read  # noqa: E402

__all__ = [
    "AUGMENTATIONS",
    "CONTROL",
    "PLANNED",
    "RESULTS",
    "TABLES",
    "TRAINED",
    "mean_of",
    "over_settings",
    "parts_of",
    "planned_settings",
    "problem_figures",
    "problem_gain",
    "results_of",
    "rows_of",
    "sensitivity_table",
    "setting_tables",
    "table_of",
    "text_gain",
    "unlabelled_tables",
    "verdict",
    "wrong_label_settings",
]

RESULTS = "benchmarks/results"
CONTROL = "cross-entropy"


@cache
def rows_of(name: str) -> tuple[dict[str, str], ...]:
    """The runs of a result file."""
    return tuple(read_csv(ROOT / RESULTS / f"{name}.csv"))


def table_of(
    rows: Sequence[analyse.Row], figures: Sequence[str] = ("error", "nll", "calibration"), control: str = CONTROL
) -> FigureTable:
    """Methods x seeds."""
    return analyse.figure_table(rows, figures, analyse.method_of, control)


def mean_of(table: FigureTable, method: str, figure: str = "error") -> float:
    """The mean of a figure over seeds."""
    return mean_std(analyse.values_of(table, method, figure)).mean


def results_of(name: str, columns: Sequence[str] = ()) -> list[str]:
    """The first table of a result page, or some of its columns."""
    lines = (ROOT / RESULTS / f"{name}.md").read_text(encoding="utf-8").splitlines()
    first = next(index for index, text in enumerate(lines) if text.startswith("|---"))
    last = next((index for index in range(first, len(lines)) if not lines[index].startswith("|")), len(lines))
    cells = [[cell.strip() for cell in text[1:-1].split("|")] for text in lines[first - 1 : last]]
    kept = [cells[0].index(column) for column in columns] or range(len(cells[0]))
    return [f"| {' | '.join(row[index] for index in kept)} |" for row in cells]


def verdict(difference: Interval | None) -> str:
    """In a word, of a difference of which less is better."""
    if difference is None or not difference.excludes_zero:
        return "no difference found"
    return "**lower**" if difference.mean < 0 else "**higher**"


def parts_of(name: str) -> list[str]:
    """The tables of a comparison, each below the name of its part."""
    lines: list[str] = []
    for part, own in analyse.PAGES[name](rows_of(name)).items():
        lines += [*([f"**{part[0].upper()}{part[1:]}.**", ""] if part else []), *own, ""]
    return lines[:-1]


PLANNED = {
    "isda:lambda_0=auto": "ISDA, auto",
    "isda:lambda_0=0.5": "ISDA, λ0 = 0.5",
    "mixup": "mixup",
    "mixup+isda:lambda_0=auto": "mixup + ISDA, auto",
}
"""Methods of the planned measurement."""
FEW_IMAGES = {"error": "test error, points", "nll": "negative log-likelihood, nats"}
"""Figures of few images, with the heads of their tables."""
PLANNED_SEEDS = 3
"""A setting with fewer seeds that every method has is not shown."""


@cache
def setting_tables(name: str, figures: tuple[str, ...] = tuple(analyse.THREE)) -> dict[str, FigureTable]:
    """The settings of a result file with enough seeds, each with the seeds that all of its methods have."""
    return setting_tables_of(rows_of(name), figures)


def setting_tables_of(rows: Sequence[analyse.Row], figures: Sequence[str]) -> dict[str, FigureTable]:
    """The same of rows."""
    tables = {}
    for setting in dict.fromkeys(row["setting"] for row in rows):
        own = [row for row in rows if row["setting"] == setting]
        seeds = _common_seeds(own)
        if len(seeds) >= PLANNED_SEEDS:
            tables[setting] = table_of([row for row in own if row["seed"] in seeds], figures)
    return tables


def planned_settings() -> dict[str, FigureTable]:
    """The settings of few_images.csv with right labels and enough seeds, by data set, augmentation and size."""

    def order(setting: str) -> tuple[str, bool, bool, int]:
        data, images, *_ = setting.split(", ")
        count = int(images.removesuffix(" images").replace(",", ""))
        return data, "crops" in setting, "epochs" in setting, count

    tables = setting_tables("few_images")
    return {setting: tables[setting] for setting in sorted(set(tables) - set(wrong_label_settings()), key=order)}


def wrong_label_settings() -> dict[str, FigureTable]:
    """The settings of few_images.csv with wrong labels and enough seeds."""
    return {setting: table for setting, table in setting_tables("few_images").items() if "wrong labels" in setting}


def _common_seeds(rows: Sequence[analyse.Row]) -> set[str]:
    """Seeds of a comparison that no method lacks; none without the control."""
    methods = {CONTROL, *(row["method"] for row in rows)}
    return set.intersection(*({row["seed"] for row in rows if row["method"] == method} for method in methods))


def over_settings(figure: str, method: str, *, long: bool = True) -> Effect:
    """A method − cross-entropy over the planned settings, with long ones or without: random effects, Bonferroni."""
    tables = {name: table for name, table in planned_settings().items() if long or "epochs" not in name}
    families = [table.family(figure) for table in tables.values() if method in table.values]
    level = 1 - (1 - LEVEL) / len(PLANNED)
    return pooled_effect([own[method].mean for own in families], [own.errors[method] for own in families], level)


def planned_few_images() -> list[str]:
    """Differences of error and negative log-likelihood to cross-entropy, a row for each setting and one over all."""
    lines: list[str] = []
    for figure, title in FEW_IMAGES.items():
        lines += _by_setting(planned_settings(), figure, title)
        for words, long in {"over all settings": True, "over all but that of 100 epochs": False}.items():
            found = (difference_text(over_settings(figure, method, long=long).interval) for method in PLANNED)
            lines.append(analyse.line([words, "", "", *found]))
        lines.append("")
    return lines[:-1]


def wrong_labels() -> list[str]:
    """Differences of error and negative log-likelihood to cross-entropy on the same wrong labels."""
    lines: list[str] = []
    for figure, title in FEW_IMAGES.items():
        lines += [*_by_setting(wrong_label_settings(), figure, title), ""]
    return lines[:-1]


def _by_setting(tables: Mapping[str, FigureTable], figure: str, title: str) -> list[str]:
    lines = analyse.head([title, "seeds", CONTROL, *PLANNED.values()])
    for setting, table in tables.items():
        cells = [
            difference_text(table.family(figure).get(method)) if method in table.values else "" for method in PLANNED
        ]
        seeds = str(len(table.values[CONTROL]))
        lines.append(analyse.line([setting, seeds, number(mean_of(table, CONTROL, figure)), *cells]))
    return lines


def after_temperature() -> list[str]:
    """Networks trained with ISDA and with cross-entropy, all with a temperature: differences of the likelihood."""
    rows = [{**row, "method": row["network"]} for row in rows_of("refitting") if row["method"] == analyse.TEMPERATURE]
    tables = setting_tables_of(rows, ("nll", "calibration"))
    heads = ["all with a temperature", f"{CONTROL}, nats", *(name for name in PLANNED.values() if "mixup" not in name)]
    lines = analyse.head(heads)
    for setting, table in tables.items():
        gaps = [difference_text(table.family("nll").get(method), 3) for method in table.values if method != CONTROL]
        lines.append(analyse.line([setting, number(mean_of(table, CONTROL, "nll"), 3), *gaps]))
    return lines


AUGMENTATIONS = {
    "CIFAR-10, 3,000 images": "no image augmentation",
    "CIFAR-10, 3,000 images, crops and flips": "crops and flips",
}
"""Settings of sensitivity.csv."""


@cache
def sensitivity_table(setting: str, study: str) -> FigureTable:
    """Strengths (``study="sensitivity"``) or parts of ISDA (``study="ablation"``)."""
    return analyse.study_table(rows_of("sensitivity"), setting, study)


def strengths() -> list[str]:
    """Error, likelihood and calibration error by strength; * an interval that excludes zero."""
    lines: list[str] = []
    cells = [cell for cell in analyse.STUDIED["sensitivity"] if cell.series]
    axis = dict.fromkeys(cell.x for cell in cells)
    for figure, title in analyse.THREE.items():
        lines += analyse.head([title, CONTROL, *(f"λ0 = {x:g}" for x in axis)])
        for setting, images in AUGMENTATIONS.items():
            table = sensitivity_table(setting, "sensitivity")
            for series, words in {"isda": "published bound", "isda-tilted": "tilted bound"}.items():
                row = [f"{images}, {words}", _starred(table, CONTROL, figure)]
                row += [_starred(table, cell.method, figure) for cell in cells if cell.series == series]
                lines.append(analyse.line(row))
        lines.append("")
    how = "; ".join(
        f"{words}: {intervals_text(sensitivity_table(setting, 'sensitivity').family('error'))}"
        for setting, words in AUGMENTATIONS.items()
    )
    return [*lines, f"\\* the interval of the difference to cross-entropy excludes zero. {sentence(how)}."]


def parts() -> list[str]:
    """Differences of the error to cross-entropy by part of ISDA, with and without image augmentation."""
    tables = {words: sensitivity_table(setting, "ablation") for setting, words in AUGMENTATIONS.items()}
    lines = analyse.head(["test error, points", *tables])
    for cell in analyse.STUDIED["ablation"][1:]:
        words = "as published" if cell.method == analyse.ABLATED else cell.label
        lines.append(analyse.line([words, *(_with_missing(table, cell.method) for table in tables.values())]))
    return lines


def _with_missing(table: FigureTable, method: str) -> str:
    """The difference of the error, and how many runs diverged."""
    return difference_text(table.family("error").get(method)) + _diverged(table, method)


def _starred(table: FigureTable, method: str, figure: str) -> str:
    """A mean, and how many runs diverged."""
    if method not in table.values:
        return _diverged(table, method).strip()
    interval = table.family(figure).get(method)
    star = "\\*" if interval is not None and interval.excludes_zero else ""
    mean = number(mean_of(table, method, figure), 2 if figure == "nll" else 1)
    return f"{mean}{star}{_diverged(table, method)}"


def _diverged(table: FigureTable, method: str) -> str:
    missing = len(table.values[CONTROL]) - len(table.values.get(method, {}))
    return f" ({missing} diverged)" if missing else ""


def automatic() -> list[str]:
    """Error and negative log-likelihood of cross-entropy, the grid's choice and auto, with differences of the error."""
    heads = ["test error, %; nats", CONTROL, "best of a grid", "auto", "grid, Δ error", "auto, Δ error"]
    lines = analyse.head(heads)
    for setting, table in setting_tables("auto").items():
        methods = sorted(table.values, key=lambda name: (name != CONTROL, name.endswith("auto")))
        cells = [f"{number(mean_of(table, name), 1)}; {number(mean_of(table, name, 'nll'))}" for name in methods]
        gaps = [difference_text(table.family("error").get(name)) for name in methods[1:]]
        lines.append(analyse.line([setting, *cells, *gaps]))
    return lines


@cache
def problem_figures() -> dict[str, Figures]:
    """Figures of the sixteen problems."""
    return read(ROOT / RESULTS / "problems.csv")


def problem_gain(figure: str, rival: str) -> Interval:
    """ISDAClassifier − a rival over the sixteen problems; negative is better, also of the log-likelihood."""
    figures = problem_figures()[figure]
    families = [family(figures, problem) for problem in names(figures)]
    gain = pooled(families, rival, 1 - (1 - LEVEL) / len(RIVALS)).interval
    return Interval(DIRECTION[figure] * gain.mean, gain.half_width)


def text_gain(figure: str, rival: str) -> Interval:
    """ISDAClassifier − a rival over the embedded texts; negative is better."""
    effect = analyse.pooled_gain(list(analyse.sentence_tables(rows_of("sentences")).values()), rival, figure)
    assert effect is not None
    return Interval(-effect.mean, effect.half_width)


def ranks() -> list[str]:
    """Mean ranks of the classifiers over all problems, and where ISDA is not first."""
    tables = problem_figures()
    lines = analyse.head(["mean rank", *METHODS])
    for figure in ("error", "log_likelihood", "calibration"):
        own = mean_ranks({method: means(tables[figure], method, DIRECTION[figure]) for method in METHODS})
        lines.append(analyse.line([figure.replace("_", "-"), *(f"{own[method]:.2f}" for method in METHODS)]))
    return [*lines, "", *problem_tables.verdict(tables)]


def contributions() -> list[str]:
    """ISDAClassifier without augmentation and against LDA with a scale, over the sixteen problems."""
    return list(problem_tables.against_controls(problem_figures()))


def rivals_of_the_classifier() -> list[str]:
    """Pooled differences of ISDAClassifier to each rival, and on how many problems it is better and worse."""
    tables, lines = problem_figures(), []
    for own, counts in zip(problem_tables.over_all(tables), problem_tables.against_all(tables), strict=True):
        cells, others = ([cell.strip() for cell in text[1:-1].split("|")] for text in (own, counts))
        lines.append(analyse.line([*cells[:3], *others[2:4], *others[5:]]))
    return [lines[0], *analyse.head([""] * 7)[1:], *lines[2:]]


TRAINED = "trained, weight "
"""Methods of unlabelled.csv, by the weight of the consistency bound."""


@cache
def unlabelled_tables() -> dict[str, FigureTable]:
    """The trainings on labelled and unlabelled rows of each problem; the control has weight 0."""
    rows = [{**row, "seed": row["draw"]} for row in rows_of("unlabelled") if row["method"].startswith(TRAINED)]
    return {
        problem: table_of(
            [row for row in rows if row["problem"] == problem], ("error", "log_likelihood"), f"{TRAINED}0"
        )
        for problem in dict.fromkeys(row["problem"] for row in rows)
    }


def unlabelled_rows() -> list[str]:
    """Changes of error and log-likelihood by the consistency bound."""
    lines = analyse.head(["problem", "error, points", "log-likelihood per row, nats"])
    for problem, table in unlabelled_tables().items():
        found = (table.family(figure).get(f"{TRAINED}1") for figure in table.figures)
        gaps = [difference_text(gap, digits) for gap, digits in zip(found, (2, 3), strict=True)]
        lines.append(analyse.line([problem, *gaps]))
    return lines


def shares() -> list[str]:
    """What the loss takes of a training step."""
    lines = analyse.head(["data", "cross-entropy, %", "ISDA, %", "ISDA, tilted bound, %"])
    for row in rows_of("training"):
        cells = (row[f"{name}_percent"] for name in ("cross_entropy", "isda", "isda_tilted"))
        lines.append(analyse.line([row["data"], *(number(float(cell)) for cell in cells)]))
    return lines


def transfer_pooled() -> list[str]:
    """The difference of the error over all data sets."""
    rows = rows_of("transfer")
    data = dict.fromkeys(row["data"] for row in rows)
    families = [table_of([row for row in rows if row["data"] == name]).family("error") for name in data]
    effect = pooled_effect([own["isda"].mean for own in families], [own.errors["isda"] for own in families])
    return [
        f"Over the {effect.problems} data sets: {verdict(effect.interval)}, {difference_text(effect.interval)} points "
        f"(random-effects meta-analysis, I² = {100 * effect.heterogeneity:.0f}%)."
    ]


def gaps_of_the_bounds() -> list[str]:
    """How far the published bound lies above the minimum that the tilted bound searches."""
    heads = ["features", "λ", "published bound − minimum, nats"]
    rows = [text[1:-1].split("|") for text in results_of("tilt", ["features", "loss", "λ", "start − minimum, median"])]
    labelled = [[row[0], *row[2:]] for row in rows if row[1].strip() == "labelled"]
    return [*analyse.head(heads), *(analyse.line(cell.strip() for cell in row) for row in labelled)]


def corruptions() -> list[str]:
    """Means of cross-entropy on corrupted images, and the differences of the other methods to it."""
    lines: list[str] = []
    for setting, table in setting_tables("robustness", tuple(analyse.CORRUPTED)).items():
        lines += [f"**{setting}**, {len(table.values[CONTROL])} seeds:", ""]
        lines += analyse.head(["Δ vs cross-entropy", *analyse.CORRUPTED.values()])
        lines.append(analyse.line([f"{CONTROL}: mean", *(number(mean_of(table, CONTROL, f)) for f in table.figures)]))
        for method, words in PLANNED.items():
            cells = [difference_text(table.family(figure).get(method)) for figure in table.figures]
            lines.append(analyse.line([words, *cells]))
        lines.append("")
    return lines[:-1]


TABLES: dict[str, Callable[[], list[str]]] = {
    "few_images": planned_few_images,
    "sensitivity": strengths,
    "ablation": parts,
    "auto": automatic,
    "problems": ranks,
    "problems-rivals": rivals_of_the_classifier,
    "problems-parts": contributions,
    "rates": lambda: results_of("rates"),
    "tilt": gaps_of_the_bounds,
    "accelerator": lambda: results_of("accelerator", ["shape", "method", "launches", "waits", "roofline, ms"]),
    "explicit": lambda: results_of("explicit"),
    "training": shares,
    "transfer-pooled": transfer_pooled,
    "unlabelled": unlabelled_rows,
    "semi_composition": lambda: parts_of("semi_composition"),
    "robustness": corruptions,
    "wrong-labels": wrong_labels,
    "after-temperature": after_temperature,
}
