"""Tables and pictures of evidence, from benchmarks/results/*.csv: `make docs` calls `write`.

Every comparison is a layout of methods x paired seeds. Differences to the control have Dunnett's simultaneous 95%
intervals, over all methods that the file holds; a page shows those that the library has.

    python website/evidence.py     writes docs/images/forest.png, the picture of README.md, and everything else
"""

from __future__ import annotations

import csv
import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import matplotlib.pyplot as plt
from scipy.special import stdtrit

from isda.lab.report.statistics import many_to_one

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
FOLDER = ROOT / "docs" / "evidence" / "generated"
FOREST = ROOT / "docs" / "images" / "forest.png"
CONTROL = "cross-entropy"
FIGURES = {"error": ("test error, %", 2), "nll": ("negative log-likelihood", 3), "calibration": ("calibration, %", 1)}
"""Title and digits of each figure."""

Row = Mapping[str, str]


class Difference(NamedTuple):
    """Mean and half width of a simultaneous 95% interval."""

    mean: float
    half_width: float

    def text(self, digits: int) -> str:
        """Bold where the interval excludes zero."""
        words = f"{self.mean:+.{digits}f} ± {self.half_width:.{digits}f}".replace("-", "\N{MINUS SIGN}")
        return f"**{words}**" if abs(self.mean) > self.half_width else words


def rows_of(name: str, **chosen: str) -> list[Row]:
    """The rows of a result file with these values; none where there is no file yet."""
    path = RESULTS / f"{name}.csv"
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if all(row[key] == value for key, value in chosen.items())]


def cells_of(
    rows: Iterable[Row], figure: str, method: str = "method", seed: str = "seed"
) -> dict[str, list[float | None]]:
    """A figure by method, in the order of seeds; None where a run is missing or diverged."""
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        if row[figure]:
            found.setdefault(row[method], {})[int(row[seed])] = float(row[figure])
    seeds = sorted({own for values in found.values() for own in values})
    return {name: [values.get(own) for own in seeds] for name, values in found.items()}


def differences(values: Mapping[str, Sequence[float | None]], control: str = CONTROL) -> dict[str, Difference]:
    """Each method − the control."""
    intervals = many_to_one(values, control=control, level=0.95)
    return {
        name: Difference(found.mean, math.inf if found.half_width is None else found.half_width)
        for name, found in intervals.items()
    }


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def spread(values: Sequence[float | None], digits: int) -> str:
    """Mean ± standard deviation over seeds."""
    known = [value for value in values if value is not None]
    deviation = f" ± {statistics.stdev(known):.{digits}f}" if len(known) > 1 else ""
    return f"{statistics.fmean(known):.{digits}f}{deviation}"


def comparison(
    rows: Sequence[Row], labels: Mapping[str, str], figures: Sequence[str] = ("error", "nll"), control: str = CONTROL
) -> list[str]:
    """A row for each method that the page shows, with its differences to the control."""
    by_figure = {figure: cells_of(rows, figure) for figure in figures}
    gaps = {figure: differences(values, control) for figure, values in by_figure.items()}
    head = ["method", "seeds", *(words for figure in figures for words in (FIGURES[figure][0], "difference"))]
    lines = []
    for method, label in labels.items():
        if method in by_figure[figures[0]]:
            count = sum(value is not None for value in by_figure[figures[0]][method])
            line = [label, str(count)]
            for figure, values in by_figure.items():
                digits = FIGURES[figure][1]
                gap = gaps[figure].get(method)
                line += [spread(values[method], digits), gap.text(digits) if gap else ""]
            lines.append(line)
    return table(head, lines)


def by_setting(name: str, labels: Mapping[str, str], figures: Sequence[str] = ("error", "nll")) -> list[str]:
    """A comparison for each setting of a result file."""
    lines: list[str] = []
    for setting in dict.fromkeys(row["setting"] for row in rows_of(name)):
        lines += [
            f"**{setting[0].upper()}{setting[1:]}**",
            "",
            *comparison(rows_of(name, setting=setting), labels, figures),
            "",
        ]
    return lines


class Source(NamedTuple):
    """A result file of classifiers on several problems: the names of its columns, of ours and of the others."""

    name: str
    problem: str
    seed: str
    ours: str
    likelihood: str
    rivals: Mapping[str, str]


def over_problems(source: Source, rival: str, figure: str) -> Difference:
    """Ours − a rival, mean over problems: Student's interval over problems, by Bonferroni for all rivals at once."""
    name, problem, seed, ours = source[:4]
    gaps = []
    for value in dict.fromkeys(row[problem] for row in rows_of(name)):
        cells = cells_of(rows_of(name, **{problem: value}), figure, seed=seed)
        pairs = zip(cells[ours], cells[rival], strict=True)
        gaps.append(statistics.fmean(a - b for a, b in pairs if a is not None and b is not None))
    width = (
        float(stdtrit(len(gaps) - 1, 1 - 0.025 / len(source.rivals))) * statistics.stdev(gaps) / math.sqrt(len(gaps))
    )
    return Difference(statistics.fmean(gaps), width)


# Each page's figures.

FEW_IMAGES = {CONTROL: CONTROL, "isda:lambda_0=0.5": "ISDA, λ0 = 0.5", "mixup": "mixup"}
STRENGTHS = {
    CONTROL: CONTROL,
    **{f"isda:lambda_0={value}": f"ISDA, λ0 = {value}" for value in ("0.1", "0.5", "2", "5", "10")},
    **{f"isda-tilted:lambda_0={value}": f"tilted bound, λ0 = {value}" for value in ("0.1", "0.5", "2", "5", "10")},
}
PARTS = {
    CONTROL: CONTROL,
    "isda:lambda_0=2": "as published, λ0 = 2",
    "isda:lambda_0=2,covariance=low_rank": "low-rank covariances",
    "isda:lambda_0=2,covariance=diagonal": "diagonal covariances",
    "isda:lambda_0=2,covariance=shared": "one covariance of all features",
    "isda:lambda_0=2,covariance=identity": "identity",
    "isda:lambda_0=2,schedule=constant": "constant λ",
    "isda-tilted:lambda_0=2": "tilted bound",
}
BASELINES = {
    CONTROL: CONTROL,
    "isda": "ISDA",
    "isda-tilted": "ISDA, tilted bound",
    "mixup+isda": "mixup and ISDA",
    "mixup": "mixup",
    "cross-entropy, dropout": "dropout",
    "label-smoothing": "label smoothing",
    "focal": "focal loss",
    "lq": "L_q loss",
    "center": "centre loss",
    "disturb-label": "disturb label",
}
RIVALS = {
    "logistic regression": "logistic regression",
    "LDA, shrunk": "LDA with shrinkage",
    "nearest neighbours": "nearest neighbours",
    "RBF SVM": "RBF SVM",
}
TEXT_RIVALS = {
    "logistic regression, raw rows": "logistic regression",
    "logistic regression, standardised rows": "logistic regression, standardised",
    "LDA, shrunk, scaled": "LDA with shrinkage and a scale",
    "ridge": "ridge classifier",
    "linear SVM": "linear SVM",
}
SHAPES = {
    "full N=128 C=10 A=640": "full, 10 classes, 640 features (Wide-ResNet-28-10, CIFAR-10)",
    "full N=128 C=100 A=640": "full, 100 classes, 640 features (Wide-ResNet-28-10, CIFAR-100)",
    "full N=128 C=100 A=64": "full, 100 classes, 64 features (ResNet-32, CIFAR-100)",
    "diagonal N=128 C=1000 A=2048": "diagonal, 1,000 classes, 2,048 features (ResNet-50, ImageNet)",
}


def capacity() -> list[str]:
    """Where the gain lives, as far as it was measured with three seeds of each method of a setting."""
    lines: list[str] = []
    for setting in dict.fromkeys(row["setting"] for row in rows_of("capacity")):
        rows = rows_of("capacity", setting=setting)
        methods = dict.fromkeys(row["method"] for row in rows)
        counts = [sum(row["method"] == method for row in rows) for method in methods]
        if len(methods) > 1 and CONTROL in methods and min(counts) >= 3:
            lines += [f"**{setting}**", "", *comparison(rows, {name: name for name in methods}), ""]
    return lines or ["No setting has three seeds of every method yet."]


def sensitivity(labels: Mapping[str, str], also: Sequence[str] = ()) -> list[str]:
    """The studies of strengths and of parts: each is a family of its own, with methods that are not shown."""
    lines: list[str] = []
    for setting in dict.fromkeys(row["setting"] for row in rows_of("sensitivity")):
        rows = [row for row in rows_of("sensitivity", setting=setting) if row["method"] in (*labels, *also)]
        lines += [f"**{setting}**", "", *comparison(rows, labels, tuple(FIGURES)), ""]
    return lines


PROBLEMS = Source("problems", "problem", "draw", "ISDA", "log_likelihood", RIVALS)
TEXTS = Source("sentences", "setting", "seed", "ISDAClassifier", "nll", TEXT_RIVALS)


def classifier() -> list[str]:
    """ISDAClassifier − other classifiers, over problems; the likelihood of both files as one where less is better."""
    lines = []
    for source, words in ((PROBLEMS, "small problems"), (TEXTS, "problems of embedded texts")):
        count = len({row[source.problem] for row in rows_of(source.name)})
        sign = -1 if source.likelihood == "log_likelihood" else 1
        for rival, label in source.rivals.items():
            line = [f"{count} {words}", label, over_problems(source, rival, "error").text(2)]
            if all(row[source.likelihood] for row in rows_of(source.name, method=rival)):
                gap = over_problems(source, rival, source.likelihood)
                line.append(Difference(sign * gap.mean, gap.half_width).text(3))
            lines.append([*line, ""][:4])
    return table(["on", "ISDAClassifier −", "test error, points", "negative log-likelihood, nats"], lines)


def semi_gap(setting: str, algorithm: str) -> tuple[list[float | None], Difference]:
    """The errors of a semi-supervised algorithm, and the difference that ISDA makes to them."""
    named = ({**row, "method": row["method"].partition(":")[0]} for row in rows_of("semi_composition", setting=setting))
    cells = cells_of([row for row in named if row["method"] in (algorithm, f"{algorithm}+isda")], "error")
    return cells[algorithm], differences(cells, algorithm)[f"{algorithm}+isda"]


def semi_supervised() -> list[str]:
    """Algorithms with ISDA − without it: one difference for each algorithm and setting."""
    lines = []
    for setting in dict.fromkeys(row["setting"] for row in rows_of("semi_composition")):
        for algorithm in ("mean-teacher", "vat"):
            errors, gap = semi_gap(setting, algorithm)
            lines.append([setting, algorithm, spread(errors, 1), gap.text(2)])
    return table(["setting", "algorithm", "test error, %", "with ISDA, points"], lines)


def transfer() -> list[str]:
    """Linear probes of features that were trained on CIFAR-100."""
    lines = []
    for data, words in {"cifar100": "CIFAR-100 itself", "cifar10": "CIFAR-10", "svhn_small": "SVHN"}.items():
        cells = cells_of(rows_of("transfer", data=data), "error")
        lines.append([words, spread(cells[CONTROL], 1), differences(cells)["isda"].text(2)])
    return table(["data", "test error, %", "with ISDA, points"], lines)


def camvid_cells() -> dict[str, list[float | None]]:
    """The mIoU by kind of ISDA."""

    def label(row: Row) -> str:
        kind = json.loads(row["options"]).get("covariance", "")
        return row["method"] if row["method"] == CONTROL else f"{row['method']}, {kind}"

    return cells_of([{**row, "method": label(row)} for row in rows_of("camvid")], "miou")


def camvid() -> list[str]:
    """Segmentation; higher is better."""
    cells = camvid_cells()
    gaps = differences(cells)
    lines = [[name, spread(values, 1), gaps[name].text(2) if name in gaps else ""] for name, values in cells.items()]
    return table(["method", "mIoU, %", "difference"], lines)


def speed() -> list[str]:
    """A loss step beside the published formulation, written densely."""
    lines = []
    for shape, words in SHAPES.items():
        row = next(row for row in rows_of("core", method="jensen") if row["shape"] == shape)
        ratios = (float(row[name]) for name in ("times faster than dense", "dense memory / ours"))
        lines.append(
            [words, f"{float(row['ms']):.1f}", *(f"{ratio:.2g}" if ratio < 10 else f"{ratio:.0f}" for ratio in ratios)]
        )
    return table(["covariance and shape, batch of 128", "ms", "times faster", "times less memory"], lines)


def training_step() -> list[str]:
    """The share of a training step of ResNet-20 that the loss takes."""
    names = ("isda_percent", "isda_tilted_percent", "cross_entropy_percent")
    lines = [[row["data"], *(f"{float(row[name]):.2f}" for name in names)] for row in rows_of("training")]
    return table(["data", "ISDA, %", "tilted bound, %", "cross-entropy, %"], lines)


def demo() -> list[str]:
    """`make demo`."""
    labels = {CONTROL: CONTROL, "isda": "ISDA, λ0 = 1", "isda-tilted": "tilted bound, λ0 = 10"}
    return comparison(rows_of("demo"), labels, tuple(FIGURES))


TABLES: dict[str, Callable[[], list[str]]] = {
    "capacity": capacity,
    "few-images": lambda: by_setting("few_images", FEW_IMAGES),
    "strengths": lambda: sensitivity(STRENGTHS),
    "parts": lambda: sensitivity(PARTS, ["isda:lambda_0=2,decay=0.99"]),
    "baselines": lambda: comparison(rows_of("rivals"), BASELINES, tuple(FIGURES)),
    "classifier": classifier,
    "finetune": lambda: by_setting("finetune", {CONTROL: CONTROL, "isda:lambda_0=0.5": "ISDA, λ0 = 0.5"}),
    "semi-supervised": semi_supervised,
    "transfer": transfer,
    "camvid": camvid,
    "speed": speed,
    "training": training_step,
    "demo": demo,
}


# Pictures.


def forest(path: Path, groups: Mapping[str, Mapping[str, Difference]], title: str) -> None:
    """A line for each difference, in groups, with a band around zero for what could not be told apart."""
    count = sum(len(own) + 1 for own in groups.values())
    with mpl.rc_context({"font.family": "DejaVu Sans", "font.size": 9}):
        figure, axes = plt.subplots(figsize=(8.2, 0.6 + 0.29 * count), dpi=130)
        place, ticks = 0, []
        for group, own in groups.items():
            axes.text(0.005, place, group, transform=axes.get_yaxis_transform(), weight="bold", va="center")
            for words, (mean, half) in own.items():
                place += 1
                clear = abs(mean) > half
                colour = "#9a9a9a" if not clear else "#0b6fb8" if mean < 0 else "#d1495b"
                axes.errorbar(mean, place, xerr=half, fmt="o", color=colour, markersize=5, linewidth=1.8)
                ticks.append((place, words))
            place += 1
        axes.axvline(0, color="#555555", linewidth=0.9)
        axes.set_yticks([at for at, _ in ticks], [words for _, words in ticks])
        axes.set_ylim(place - 0.4, -0.7)
        axes.set_xlabel(title)
        axes.tick_params(left=False)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        figure.tight_layout()
        figure.savefig(path, metadata={"differences": shown(groups)})
        plt.close(figure)


def shown(groups: Mapping[str, Mapping[str, Difference]]) -> str:
    """What a forest plot shows, as text: kept in its file, so that a test sees whether it is current."""
    return json.dumps(
        {group: {name: [round(v, 2) for v in gap] for name, gap in own.items()} for group, own in groups.items()}
    )


def _one(name: str, method: str, figure: str = "error", **chosen: str) -> Difference:
    return differences(cells_of(rows_of(name, **chosen), figure))[method]


def _half(setting: str) -> Difference:
    return _one("few_images", "isda:lambda_0=0.5", setting=setting)


def summary() -> dict[str, dict[str, Difference]]:
    """The differences of the test error that README and "Should I use it?" show."""
    ten, hundred, augmented = "CIFAR-10, 3,000 images", "CIFAR-100, 3,000 images", "images, crops and flips"
    strengths = [row for row in rows_of("sensitivity", setting=ten) if row["method"] in STRENGTHS]
    miou = differences(camvid_cells())["isda, diagonal"]
    return {
        "few images or labels, no image augmentation": {
            "200 digits, λ0 = 1": _one("demo", "isda"),
            "3,000 images of CIFAR-10, λ0 = 2": differences(cells_of(strengths, "error"))["isda:lambda_0=2"],
            "3,000 images of CIFAR-10, λ0 = 0.5": _half(ten),
            "3,000 images of CIFAR-100, λ0 = 0.5": _half(hundred),
            "ISDAClassifier, 16 small problems": over_problems(PROBLEMS, "logistic regression", "error"),
        },
        "with crops and flips, λ0 = 0.5": {
            "3,000 images of CIFAR-10, 20 epochs": _half(f"CIFAR-10, 3,000 {augmented}"),
            "3,000 images of CIFAR-10, 100 epochs": _half(f"CIFAR-10, 3,000 {augmented}, 100 epochs"),
            "10,000 images of CIFAR-10, 12 epochs": _half(f"CIFAR-10, 10,000 {augmented}"),
            "10,000 images of CIFAR-100, 12 epochs": _half(f"CIFAR-100, 10,000 {augmented}"),
        },
        "other tasks": {
            "fine-tuning, 1,000 images of 100 classes": _one("finetune", "isda:lambda_0=0.5", setting="all layers"),
            "semi-supervised, VAT on CIFAR-10": semi_gap("CIFAR-10, 1,000 labels", "vat")[1],
            "features of CIFAR-100 for SVHN": _one("transfer", "isda", data="svhn_small"),
            "segmentation, mIoU lost on CamVid": Difference(-miou.mean, miou.half_width),
        },
    }


def few_images_forest(figure: str) -> dict[str, dict[str, Difference]]:
    """ISDA and mixup in every setting of few images."""
    found: dict[str, dict[str, Difference]] = {"ISDA, λ0 = 0.5": {}, "mixup": {}}
    for setting in sorted({row["setting"] for row in rows_of("few_images")}):
        for method, label in list(FEW_IMAGES.items())[1:]:
            gaps = differences(cells_of(rows_of("few_images", setting=setting), figure))
            if method in gaps:
                found[label][setting] = gaps[method]
    return found


def strengths_forest() -> dict[str, dict[str, Difference]]:
    """The error by strength."""
    found = {}
    for setting in dict.fromkeys(row["setting"] for row in rows_of("sensitivity")):
        rows = [row for row in rows_of("sensitivity", setting=setting) if row["method"] in STRENGTHS]
        gaps = differences(cells_of(rows, "error"))
        found[setting] = {STRENGTHS[name]: gap for name, gap in gaps.items()}
    return found


def baselines_forest() -> dict[str, dict[str, Difference]]:
    """The error of each loss."""
    gaps = differences(cells_of(rows_of("rivals"), "error"))
    return {
        "CIFAR-10, 3,000 images, 20 epochs": {label: gaps[name] for name, label in BASELINES.items() if name in gaps}
    }


POINTS = "difference of the test error in points, 95% intervals; left is better"
PICTURES: dict[str, tuple[Callable[[], dict[str, dict[str, Difference]]], str]] = {
    "few-images": (lambda: few_images_forest("error"), POINTS),
    "few-images-likelihood": (
        lambda: few_images_forest("nll"),
        "difference of the negative log-likelihood in nats; left is better",
    ),
    "strengths": (strengths_forest, POINTS),
    "baselines": (baselines_forest, POINTS),
}


def write() -> None:
    """Every table as a Markdown file and every picture, in docs/evidence/generated."""
    FOLDER.mkdir(exist_ok=True)
    for name, made in TABLES.items():
        (FOLDER / f"_{name}.md").write_text("\n".join([*made(), ""]), encoding="utf-8")
    for name, (groups, title) in PICTURES.items():
        forest(FOLDER / f"{name}.png", groups(), title)


if __name__ == "__main__":
    write()
    forest(FOREST, summary(), POINTS)
