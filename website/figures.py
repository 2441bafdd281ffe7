"""Figures of README.md and docs/, from benchmarks/results: `python website/figures.py` writes them (`make analyse`).

A page marks where figures belong:

    <!-- figures: NAME -->
    ...
    <!-- end of figures -->

NAME is a function of `BLOCKS`, or a comparison of benchmarks/analyse.py, such as `rivals`.
Nothing is typed: new measurements replace the old ones in every page.
"""

from __future__ import annotations

import posixpath
import re
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import analyse  # noqa: E402
from evidence_figures import (  # noqa: E402
    CONTROL,
    RESULTS,
    TABLES,
    judged,
    mean_of,
    over_settings,
    parts_of,
    planned_settings,
    problem_figures,
    problem_gain,
    rows_of,
    setting_tables,
    table_of,
    text_gain,
    verdict,
    wrong_label_settings,
)
from evidence_index import does_not_help, helps  # noqa: E402
from isda.report.figure_tables import FigureTable  # noqa: E402
from isda.report.statistics import mean_std  # noqa: E402
from isda.report.wording import difference_text, intervals_text, number, plus_minus  # noqa: E402
from problem_tables import names  # noqa: E402

__all__ = ["BLOCKS", "pages", "written"]


def _difference(table: FigureTable, figure: str, method: str) -> str:
    return difference_text(table.family(figure).shown(method))


def _both(table: FigureTable, method: str) -> str:
    return judged(*(table.family(figure).shown(method) for figure in ("error", "nll")))


def _control(table: FigureTable, control: str = CONTROL) -> str:
    """The figures of the control."""
    error = number(mean_of(table, control), 1)
    return f"{error}%, {number(mean_of(table, control, 'nll'))} nats" if "nll" in table.figures else f"{error}%"


def _link(words: str, page: str) -> str:
    """A link to a file of the repository, which `written` turns to where the page lies."""
    return f"[{words}]({page})"


def _result(words: str, name: str) -> str:
    return _link(words, f"{RESULTS}/{name}.md")


PLAIN, CROPPED = "CIFAR-10, 3,000 images", "CIFAR-10, 3,000 images, crops and flips"
LONG = f"{CROPPED}, 100 epochs"
AUTO, HALF = "isda:lambda_0=auto", "isda:lambda_0=0.5"
MIXED = {"mixup": "mixup", "mixup+isda:lambda_0=auto": "mixup and `auto` together"}


def few_images() -> list[str]:
    """Few images without augmentation."""
    table = planned_settings()[PLAIN]
    fixed, mixup = (_both(table, method) for method in (HALF, "mixup"))
    effects = [over_settings(figure, HALF) for figure in ("error", "nll")]
    overall = (
        f"Over {effects[0].problems} settings of {_link('few images', 'docs/evidence/few-images.md')} (not planned), "
        f"λ0 = 0.5: {judged(*(effect.interval for effect in effects))}"
    )
    scaled = [row for row in rows_of("refitting") if (row["setting"], row["network"]) == (PLAIN, CONTROL)]
    temperature = statistics.fmean(float(row["nll"]) for row in scaled if row["method"] == "temperature")
    return [
        f"A network trained from scratch on few images without augmentation, 20 epochs "
        f"({_result('CIFAR-10, 3,000', 'few_images')})",
        _control(table),
        f"{_both(table, AUTO)}. λ0 = 0.5: {fixed}. {overall}",
        "`auto`",
        f"mixup ({mixup}); for the probabilities {_result('temperature scaling', 'refitting')} of cross-entropy on 300 "
        f"further images ({number(temperature)} nats); dropout ({_result('ten others', 'rivals')})",
    ]


def augmented_images() -> list[str]:
    """The same with crops and flips."""
    tables = planned_settings()
    gain = mean_of(tables[CROPPED], CONTROL) - mean_of(tables[PLAIN], CONTROL)
    return [
        f"The same with random crops and flips, 20 epochs and 100 ({_result('CIFAR-10, 3,000', 'few_images')})",
        f"{_control(tables[CROPPED])}; 100 epochs: {_control(tables[LONG])}",
        f"{_both(tables[CROPPED], HALF)}. 100 epochs: {_both(tables[LONG], HALF)}; `auto`: "
        f"{judged(tables[LONG].family('error').shown(AUTO))}",
        "0.5",
        f"the crops and flips themselves: error {number(gain, 1, sign=True)} points; mixup "
        f"({_both(tables[CROPPED], 'mixup')})",
    ]


def embeddings() -> list[str]:
    """The estimator against logistic regression, over all problems."""
    tables = problem_figures()
    error, nll = (problem_gain(figure, "logistic regression") for figure in ("error", "log_likelihood"))
    lda = problem_gain("error", "LDA, shrunk")
    base = statistics.fmean(
        statistics.fmean(methods["logistic regression"].values()) for methods in tables["error"].values()
    )
    problems = _result(f"{len(names(tables['error']))} problems", "problems")
    texts = [text_gain(figure, "logistic regression, raw rows") for figure in ("error", "nll")]
    return [
        f"Embeddings or tables, 5 to 100 labels per class, `ISDAClassifier` ({problems}: images, text, audio, tables; "
        f"it was developed on them. {_result('Embedded texts', 'sentences')}: it was not)",
        f"logistic regression, tuned: {number(base, 1)}%",
        f"{judged(error, nll)}. Embedded texts: {judged(*texts)}",
        "chosen by cross-validation",
        f"LDA with shrinkage (ISDAClassifier − LDA: error: {verdict(lda)}, {difference_text(lda)} points; LDA has "
        "worse probabilities); ridge classifier",
    ]


def fine_tuning() -> list[str]:
    """Pretrained networks: a convolutional one on images, a transformer on texts."""
    images, texts = (setting_tables(name) for name in ("finetune", "text_finetune"))
    named = {**images, **{f"texts, {setting.partition(', ')[2]}": table for setting, table in texts.items()}}
    return [
        f"Fine-tuning a pretrained network ({_result('EfficientNet-Lite0', 'finetune')}, 1,000 images of 100 classes; "
        f"{_result('a sentence encoder', 'text_finetune')}, 20 newsgroups)",
        "; ".join(f"{words} {number(mean_of(table, CONTROL), 1)}%" for words, table in named.items()),
        "; ".join(f"{words}: {judged(table.family('error').shown(AUTO))}" for words, table in named.items()),
        "`auto`",
        "`ISDAClassifier` on the frozen network's embeddings",
    ]


def wrong_labels() -> list[str]:
    """Training images of which some have the label of another class."""
    tables = {setting.rpartition(", ")[2].partition(" ")[0]: own for setting, own in wrong_label_settings().items()}
    others = (
        f"{name}, error "
        + " and ".join(f"{_difference(table, 'error', method)} ({share})" for share, table in tables.items())
        for method, name in MIXED.items()
    )
    return [
        f"Few images, some with a wrong label, no image augmentation ({_result('CIFAR-10, 3,000', 'few_images')})",
        "; ".join(f"{share} wrong: {_control(table)}" for share, table in tables.items()),
        "; ".join(f"{share} wrong: {_both(table, AUTO)}" for share, table in tables.items()),
        "`auto`",
        f"{'; '.join(others)}. Early stopping was not measured",
    ]


def elsewhere() -> list[str]:
    """Unlabelled images, segmentation, transfer, long tails."""
    semi = analyse.semi_overall(rows_of("semi_composition"))[0]
    pixels = analyse.camvid(rows_of("camvid"))[""]
    miou = next(line for line in pixels if line.startswith("| ISDA, full ")).split("|")[4].strip()
    transfer = table_of([row for row in rows_of("transfer") if row["data"] == "svhn_small"])
    tails = table_of([row for row in rows_of("longtail") if int(row["seed"]) < 100], ("error",))
    others = (f"{data}: {text}" for data, text in _vat_gains().items())
    return [
        f"{_result('Unlabelled images', 'semi_composition')}, {_result('segmentation', 'camvid')}, "
        f"{_result('transfer', 'transfer')}, {_result('long tails', 'longtail')}",
        "",
        f"added to mean teacher and VAT: {judged(semi)}; segmentation (CamVid): no difference found, mIoU {miou} "
        "points (a drop is worse); transfer of features from CIFAR-100 to SVHN: "
        f"{judged(transfer.family('error').shown('isda'))}; long-tailed classes: "
        f"{judged(tails.family('error').shown('ISDA'))}",
        "",
        f"unlabelled images: VAT instead of mean teacher, error, points ({'; '.join(others)}); long tails: "
        f"logit adjustment (error {_difference(tails, 'error', 'logit adjustment')} points)",
    ]


def _vat_gains() -> dict[str, str]:
    """The error of VAT − that of mean teacher, both without ISDA, by data set."""
    tables = analyse.semi_tables(rows_of("semi_composition"))
    return {setting.partition(",")[0]: _difference(table, "error", "vat") for setting, table in tables.items()}


def use_it() -> list[str]:
    """Six situations: what was measured, which strength, what else would do."""
    lines = analyse.head(["situation", "without ISDA", "with ISDA", "λ0", "what else would do"])
    situations = (few_images, augmented_images, wrong_labels, embeddings, fine_tuning, elsewhere)
    return [*lines, *(analyse.line(situation()) for situation in situations)]


LABELS = {"cross-entropy": "cross-entropy", "isda": "ISDA, λ0 = 1", "isda-tilted": "ISDA, tilted bound, λ0 = 10"}


def demo() -> list[str]:
    """The table of `make demo`."""
    table = table_of(rows_of("demo"))
    lines = analyse.head(["method", "test error, %", "Δ", "negative log-likelihood", "calibration error, %"])
    for method in table.values:
        error = plus_minus(*mean_std(analyse.values_of(table, method, "error")))
        means = [number(mean_of(table, method, "nll"), 3), number(mean_of(table, method, "calibration"), 1)]
        lines.append(analyse.line([LABELS[method], error, _difference(table, "error", method), *means]))
    return [*lines, "", f"Δ: difference to cross-entropy, {intervals_text(table.family('error'))}."]


SHAPES = {
    "full N=128 C=10 A=640": "full, 10 classes, 640 features (Wide-ResNet-28-10, CIFAR-10)",
    "full N=128 C=100 A=640": "full, 100 classes, 640 features (Wide-ResNet-28-10, CIFAR-100)",
    "full N=128 C=100 A=64": "full, 100 classes, 64 features (ResNet-32, CIFAR-100)",
    "diagonal N=128 C=1000 A=2048": "diagonal, 1,000 classes, 2,048 features (ResNet-50, ImageNet)",
}


def speed() -> list[str]:
    """A loss step beside the published formulation, written densely."""
    lines = analyse.head(["covariance and shape, batch of 128", "times faster", "times less memory"])
    for shape, words in SHAPES.items():
        row = next(row for row in rows_of("core") if (row["shape"], row["method"]) == (shape, "jensen"))
        ratios = (float(row[name]) for name in ("times faster than dense", "dense memory / ours"))
        lines.append(analyse.line([words, *(f"{ratio:.2g}" if ratio < 10 else f"{ratio:.0f}" for ratio in ratios)]))
    return lines


BLOCKS: dict[str, Callable[[], list[str]]] = {
    "use-it": use_it,
    "helps": helps,
    "does-not-help": does_not_help,
    "demo": demo,
    "core": speed,
    **TABLES,
}


def block(name: str) -> list[str]:
    """The lines of a block, with links from the top of the repository."""
    if name in BLOCKS:
        return BLOCKS[name]()
    if name not in analyse.PAGES:
        known = ", ".join([*BLOCKS, *analyse.PAGES])
        raise ValueError(f"a block of figures must be one of {known}, got {name!r}")
    parts = analyse.PAGES[name](rows_of(name))
    return parts[""] if "" in parts else parts_of(name)


_PLACE = re.compile(r"(?P<begin><!-- figures: (?P<name>.*?) -->\n).*?(?P<end><!-- end of figures -->)", re.DOTALL)
_TARGET = re.compile(r"\]\((?!\w+:|#)([^)\s]+)\)")


def written(text: str, place: str) -> str:
    """The text of a page with its figures; ``place`` is its path from the top of the repository."""
    folder = posixpath.dirname(place) or "."

    def filled(found: re.Match[str]) -> str:
        lines = "\n".join(block(found["name"]))
        lines = _TARGET.sub(lambda link: f"]({posixpath.relpath(link[1], folder)})", lines)
        return f"{found['begin']}\n{lines}\n\n{found['end']}"

    return _PLACE.sub(filled, text)


def pages() -> list[Path]:
    """README.md and every page of docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def main() -> None:
    """Write the pages that changed."""
    for path in pages():
        text = path.read_text(encoding="utf-8")
        new = written(text, path.relative_to(ROOT).as_posix())
        if new != text:
            path.write_text(new, encoding="utf-8")
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
