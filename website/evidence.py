"""Tables and pictures of evidence, from benchmarks/results/*.csv: `make docs` calls `write`.

Every comparison is a layout of methods x paired seeds. Differences to the control have Dunnett's simultaneous 95%
intervals, over all methods that the file holds; a page shows those that the library has.
`python website/evidence.py` also writes docs/images/forest.png, the picture of README.md.
"""

from __future__ import annotations

import csv
import json
import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
from scipy.special import stdtrit

from isda.lab.report.statistics import many_to_one

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
FOLDER = ROOT / "docs" / "evidence" / "generated"
FOREST = ROOT / "docs" / "images" / "forest.png"
CONTROL = "cross-entropy"
FIGURES = {
    "error": ("test error, %", 2),
    "nll": ("negative log-likelihood", 3),
    "calibration": ("calibration error, %", 1),
    "miou": ("mIoU, %", 2),
}
"""Title and digits of each figure."""
THREE = ("error", "nll", "calibration")
GONE = re.compile("auto|decay=0.99")
"""In the names of methods that the library no longer has."""
WORDS = {
    "isda": "ISDA",
    "isda-tilted": "ISDA, tilted bound",
    "lambda_0": "λ0",
    "covariance=identity": "identity",
    "covariance=diagonal": "diagonal covariances",
    "covariance=shared": "one covariance of all features",
    "covariance=low_rank": "low-rank covariances",
    "schedule=constant": "constant λ",
}

Row = Mapping[str, str]
Cells = dict[str, list[float | None]]
"""A figure by method, in the order of seeds; None where a run is missing or diverged."""


class Difference(NamedTuple):
    """Mean and half width of a simultaneous 95% interval."""

    mean: float
    half_width: float

    def text(self, digits: int) -> str:
        """Bold where the interval excludes zero."""
        words = f"{self.mean:+.{digits}f} ± {self.half_width:.{digits}f}".replace("-", "\N{MINUS SIGN}")
        return f"**{words}**" if abs(self.mean) > self.half_width else words


Groups = dict[str, dict[str, Difference]]
"""What a forest plot shows: differences by words, in groups."""


def rows_of(name: str, **chosen: str) -> list[Row]:
    """The rows of a result file with these values; none where there is no file yet."""
    path = RESULTS / f"{name}.csv"
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if all(row[key] == value for key, value in chosen.items())]


def values_of(rows: Iterable[Row], key: str) -> list[str]:
    """The different values of a column, in order."""
    return list(dict.fromkeys(row[key] for row in rows))


def cells_of(rows: Iterable[Row], figure: str, seed: str = "seed") -> Cells:
    """A figure by method and seed."""
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        if row[figure]:
            found.setdefault(row["method"], {})[int(row[seed])] = float(row[figure])
    seeds = sorted({own for values in found.values() for own in values})
    return {name: [values.get(own) for own in seeds] for name, values in found.items()}


def differences(cells: Cells) -> dict[str, Difference]:
    """Each method − the first one, of those that the library has."""
    found = many_to_one(cells, control=next(iter(cells)), level=0.95)
    widths = {name: math.inf if gap.half_width is None else gap.half_width for name, gap in found.items()}
    return {name: Difference(gap.mean, widths[name]) for name, gap in found.items() if not GONE.search(name)}


def label(method: str) -> str:
    """A method as a page names it: isda:lambda_0=2,schedule=constant is ISDA, λ0 = 2, constant λ."""
    name, _, options = method.partition(":")
    words = [WORDS.get(name, name)]
    for option in filter(None, options.split(",")):
        key, _, value = option.partition("=")
        words.append(WORDS.get(option, f"{WORDS.get(key, key)} = {value}"))
    return ", ".join(words)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def spread(values: Sequence[float | None], digits: int) -> str:
    """Mean ± standard deviation over seeds."""
    known = [value for value in values if value is not None]
    deviation = f" ± {statistics.stdev(known):.{digits}f}" if len(known) > 1 else ""
    return f"{statistics.fmean(known):.{digits}f}{deviation}"


def comparison(rows: Sequence[Row], figures: Sequence[str] = ("error", "nll")) -> list[str]:
    """A row for each method, with its differences to the first one."""
    by_figure = {figure: cells_of(rows, figure) for figure in figures}
    gaps = {figure: differences(cells) for figure, cells in by_figure.items()}
    head = ["method", "seeds", *(words for figure in figures for words in (FIGURES[figure][0], "difference"))]
    lines = []
    for method, values in by_figure[figures[0]].items():
        if not GONE.search(method):
            line = [label(method), str(sum(value is not None for value in values))]
            for figure, cells in by_figure.items():
                digits, gap = FIGURES[figure][1], gaps[figure].get(method)
                line += [spread(cells[method], digits), gap.text(digits) if gap else ""]
            lines.append(line)
    return table(head, lines)


def by_setting(rows: Sequence[Row], key: str = "setting", figures: Sequence[str] = ("error", "nll")) -> list[str]:
    """A comparison for each setting."""
    lines: list[str] = []
    for setting in values_of(rows, key):
        own = [row for row in rows if row[key] == setting]
        lines += [f"**{setting[0].upper()}{setting[1:]}**", "", *comparison(own, figures), ""]
    return lines


def capacity_rows() -> list[Row]:
    """Those of the settings of which every method has three seeds: before that no claim is made."""
    rows = rows_of("capacity")
    seeds = Counter((row["setting"], row["method"]) for row in rows)
    few = {setting for (setting, _), count in seeds.items() if count < 3}
    few |= {row["setting"] for row in rows} - {setting for setting, method in seeds if method == CONTROL}
    return [row for row in rows if row["setting"] not in few]


def capacity() -> list[str]:
    """Its picture and tables, once there are some."""
    picture = "![Difference of the test error to cross-entropy by setting](generated/capacity.png)"
    return [picture, "", *by_setting(capacity_rows())] if capacity_rows() else ["*No setting is complete yet.*"]


def study(parts: bool) -> list[Row]:
    """The rows of sensitivity.csv for the strengths of both bounds, or for the parts of the method at λ0 = 2."""
    rows = rows_of("sensitivity")
    if not parts:
        return [row for row in rows if "," not in row["method"]]
    return [row for row in rows if row["method"] == CONTROL or row["method"].partition(",")[0].endswith("lambda_0=2")]


class Source(NamedTuple):
    """Classifiers on several problems: a result file, names of its columns, and ours."""

    name: str
    problem: str
    seed: str
    ours: str
    likelihood: str


PROBLEMS = Source("problems", "problem", "draw", "ISDA", "log_likelihood")
TEXTS = Source("sentences", "setting", "seed", "ISDAClassifier", "nll")
NOT_RIVALS = ("ISDA, λ0 = 0", "LDA, shrunk, scaled")
"""Of problems.csv: what the classifier was developed against."""


def rivals_of(source: Source) -> list[str]:
    """The other classifiers."""
    skipped = NOT_RIVALS if source is PROBLEMS else ()
    return [name for name in values_of(rows_of(source.name), "method") if name not in (source.ours, *skipped)]


def over_problems(source: Source, rival: str, figure: str) -> Difference:
    """Ours − a rival, mean over problems: Student's interval over problems, by Bonferroni for all rivals at once."""
    gaps = []
    for problem in values_of(rows_of(source.name), source.problem):
        cells = cells_of(rows_of(source.name, **{source.problem: problem}), figure, source.seed)
        pairs = zip(cells[source.ours], cells[rival], strict=True)
        gaps.append(statistics.fmean(a - b for a, b in pairs if a is not None and b is not None))
    quantile = float(stdtrit(len(gaps) - 1, 1 - 0.025 / len(rivals_of(source))))
    return Difference(statistics.fmean(gaps), quantile * statistics.stdev(gaps) / math.sqrt(len(gaps)))


def classifier() -> list[str]:
    """ISDAClassifier − each other classifier; the likelihood of both files as one where less is better."""
    lines = []
    for source, words, sign in ((PROBLEMS, "16 small problems", -1), (TEXTS, "6 problems of embedded texts", 1)):
        for rival in rivals_of(source):
            line = [words, rival, over_problems(source, rival, "error").text(2), ""]
            if all(row[source.likelihood] for row in rows_of(source.name, method=rival)):
                gap = over_problems(source, rival, source.likelihood)
                line[3] = Difference(sign * gap.mean, gap.half_width).text(3)
            lines.append(line)
    return table(["on", "ISDAClassifier −", "test error, points", "negative log-likelihood, nats"], lines)


def semi_rows() -> list[Row]:
    """Semi-supervised algorithms alone and with ISDA, a setting for each."""
    rows: list[Row] = []
    for row in rows_of("semi_composition"):
        method = row["method"].partition(":")[0]
        setting = f"{row['setting']}, {method.removesuffix('+isda')}"
        rows.append({**row, "method": method, "setting": setting})
    return rows


def camvid_rows() -> list[Row]:
    """Those of camvid.csv, whose methods are kinds of ISDA."""
    kinds = {row["options"]: json.loads(row["options"]).get("covariance", "") for row in rows_of("camvid")}
    return [{**row, "method": f"{row['method']} {kinds[row['options']]}".strip()} for row in rows_of("camvid")]


def columns(rows: Sequence[Row], heads: Mapping[str, str]) -> list[str]:
    """Some columns of a result file, numbers with three digits."""
    first, *others = heads
    lines = [[row[first], *(f"{float(row[name]):.3g}" for name in others)] for row in rows]
    return table(list(heads.values()), lines)


SPEED = {
    "shape": "covariance; batch N, classes C, features A",
    "ms": "ms",
    "times faster than dense": "times faster",
    "dense memory / ours": "times less memory",
}
STEP = {"data": "data", "isda_percent": "ISDA, %", "isda_tilted_percent": "tilted bound, %"}
TABLES: dict[str, Callable[[], list[str]]] = {
    "capacity": capacity,
    "few-images": lambda: by_setting(rows_of("few_images")),
    "strengths": lambda: by_setting(study(parts=False), figures=THREE),
    "parts": lambda: by_setting(study(parts=True), figures=THREE),
    "baselines": lambda: comparison(rows_of("rivals"), THREE),
    "classifier": classifier,
    "finetune": lambda: by_setting(rows_of("finetune")),
    "semi-supervised": lambda: by_setting(semi_rows()),
    "transfer": lambda: by_setting(rows_of("transfer"), "data"),
    "camvid": lambda: comparison(camvid_rows(), ["miou"]),
    "speed": lambda: columns(rows_of("core", method="jensen"), SPEED),
    "training": lambda: columns(rows_of("training"), STEP),
    "demo": lambda: comparison(rows_of("demo"), THREE),
}


def forest(path: Path, groups: Groups, title: str) -> None:
    """A line for each difference; grey where the interval includes zero. The file carries them, for a test."""
    count = sum(len(own) + 1 for own in groups.values())
    if not groups:
        return
    figure, axes = plt.subplots(figsize=(8.2, 0.7 + 0.29 * count), dpi=130)
    place, ticks = 0, []
    for group, own in groups.items():
        axes.text(0.005, place, group, transform=axes.get_yaxis_transform(), weight="bold", va="center", fontsize=9)
        for words, (mean, half) in own.items():
            place += 1
            colour = "#9a9a9a" if abs(mean) <= half else "#0b6fb8" if mean < 0 else "#d1495b"
            axes.errorbar(mean, place, xerr=half, fmt="o", color=colour, markersize=5, linewidth=1.8)
            ticks.append((place, words))
        place += 1
    axes.axvline(0, color="#555555", linewidth=0.9)
    axes.set_yticks([at for at, _ in ticks], [words for _, words in ticks], fontsize=9)
    axes.set_ylim(place - 0.4, -0.7)
    axes.set_xlabel(title, fontsize=9)
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, metadata={"differences": shown(groups)})
    plt.close(figure)


def shown(groups: Groups) -> str:
    """What a forest plot shows, as text."""
    rounded = {
        group: {words: [round(v, 2) for v in gap] for words, gap in own.items()} for group, own in groups.items()
    }
    return json.dumps(rounded)


def summary() -> Groups:
    """The differences of the test error that README and "Should I use it?" show."""
    few = settings_forest(rows_of("few_images"), "error")
    half, augmented = "ISDA, λ0 = 0.5", "images, crops and flips"
    strengths, semi, tuned = (
        settings_forest(rows, "error") for rows in (study(parts=False), semi_rows(), rows_of("finetune"))
    )
    miou = differences(cells_of(camvid_rows(), "miou"))["isda diagonal"]
    svhn = differences(cells_of(rows_of("transfer", data="svhn_small"), "error"))["isda"]
    return {
        "few images or labels, no image augmentation": {
            "200 digits, λ0 = 1": differences(cells_of(rows_of("demo"), "error"))["isda"],
            "3,000 images of CIFAR-10, λ0 = 2": strengths["CIFAR-10, 3,000 images"]["ISDA, λ0 = 2"],
            "3,000 images of CIFAR-10, λ0 = 0.5": few["CIFAR-10, 3,000 images"][half],
            "3,000 images of CIFAR-100, λ0 = 0.5": few["CIFAR-100, 3,000 images"][half],
            "ISDAClassifier, 16 small problems": over_problems(PROBLEMS, "logistic regression", "error"),
        },
        "with crops and flips, λ0 = 0.5": {
            "3,000 images of CIFAR-10, 20 epochs": few[f"CIFAR-10, 3,000 {augmented}"][half],
            "3,000 images of CIFAR-10, 100 epochs": few[f"CIFAR-10, 3,000 {augmented}, 100 epochs"][half],
            "10,000 images of CIFAR-10, 12 epochs": few[f"CIFAR-10, 10,000 {augmented}"][half],
            "10,000 images of CIFAR-100, 12 epochs": few[f"CIFAR-100, 10,000 {augmented}"][half],
        },
        "other tasks": {
            "fine-tuning, 1,000 images of 100 classes": tuned["all layers"][half],
            "semi-supervised, VAT on CIFAR-10": semi["CIFAR-10, 1,000 labels, vat"]["vat+isda"],
            "features of CIFAR-100 for SVHN": svhn,
            "segmentation, mIoU lost on CamVid": Difference(-miou.mean, miou.half_width),
        },
    }


def settings_forest(rows: Sequence[Row], figure: str) -> Groups:
    """Every method in every setting."""
    groups: Groups = {}
    for setting in values_of(rows, "setting"):
        gaps = differences(cells_of([row for row in rows if row["setting"] == setting], figure))
        groups[setting] = {label(name): gap for name, gap in gaps.items()}
    return groups


POINTS = "difference of the test error in points, 95% intervals; left is better"
NATS = "difference of the negative log-likelihood in nats, 95% intervals; left is better"


def write() -> None:
    """Every table as a Markdown file and every picture, in docs/evidence/generated."""
    FOLDER.mkdir(exist_ok=True)
    for name, made in TABLES.items():
        (FOLDER / f"_{name}.md").write_text("\n".join([*made(), ""]), encoding="utf-8")
    forest(FOLDER / "capacity.png", settings_forest(capacity_rows(), "error"), POINTS)
    forest(FOLDER / "few-images.png", settings_forest(rows_of("few_images"), "error"), POINTS)
    forest(FOLDER / "few-images-likelihood.png", settings_forest(rows_of("few_images"), "nll"), NATS)
    forest(FOLDER / "strengths.png", settings_forest(study(parts=False), "error"), POINTS)
    baselines: list[Row] = [{**row, "setting": "CIFAR-10, 3,000 images"} for row in rows_of("rivals")]
    forest(FOLDER / "baselines.png", settings_forest(baselines, "error"), POINTS)


if __name__ == "__main__":
    write()
    forest(FOREST, summary(), POINTS)
