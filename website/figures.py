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
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import analyse  # noqa: E402
from evidence_figures import (  # noqa: E402
    CONTROL,
    RESULTS,
    TABLES,
    mean_of,
    over_settings,
    parts_of,
    planned_settings,
    problem_figures,
    problem_gain,
    rows_of,
    sensitivity_table,
    setting_tables,
    table_of,
    text_gain,
    wrong_label_settings,
)
from evidence_index import does_not_help, helps  # noqa: E402
from figure_tables import FigureTable  # noqa: E402
from isda.lab.report.statistics import Interval, mean_std  # noqa: E402
from isda.lab.report.wording import difference_text, intervals_text, number, plus_minus  # noqa: E402
from problem_tables import names  # noqa: E402

__all__ = ["BLOCKS", "pages", "written"]


def _difference(table: FigureTable, figure: str, method: str) -> str:
    return difference_text(table.family(figure).get(method))


def _pair(error: Interval | None, nll: Interval | None = None, *, name: str = "error") -> str:
    """Differences of the error and of the negative log-likelihood, bold where the interval excludes zero."""
    found = {name: (error, 2), **({"nats": (nll, 3)} if nll is not None else {})}
    return ", ".join(f"{words}{FIXED}{_bold(gap, digits)}" for words, (gap, digits) in found.items())


def _bold(gap: Interval | None, digits: int) -> str:
    """A difference that is not broken into two lines, in bold where its interval excludes zero."""
    text = difference_text(gap, digits).replace(" ", FIXED)
    return f"**{text}**" if gap is not None and gap.excludes_zero else text


def _gaps(table: FigureTable, method: str) -> list[Interval | None]:
    """Differences of a method's error and negative log-likelihood to the control."""
    return [table.family(figure).get(method) for figure in ("error", "nll")]


def _both(table: FigureTable, method: str) -> str:
    """The same as text."""
    return _pair(*_gaps(table, method))


def _lines(texts: Mapping[str, str]) -> str:
    """A cell with a line for each name."""
    return BREAK.join(f"{name}: {text}" for name, text in texts.items())


def _control(table: FigureTable, control: str = CONTROL) -> str:
    """The figures of the control."""
    error = number(mean_of(table, control), 1)
    return f"{error}%, {number(mean_of(table, control, 'nll'))} nats" if "nll" in table.figures else f"{error}%"


def _link(words: str, page: str) -> str:
    """A link to a file of the repository, which `written` turns to where the page lies."""
    return f"[{words}]({page})"


def _result(words: str, name: str) -> str:
    return _link(words, f"{RESULTS}/{name}.md")


BREAK = "<br>"
"""Between the lines of a cell."""
FIXED = "\N{NO-BREAK SPACE}"
PLAIN, CROPPED = "CIFAR-10, 3,000 images", "CIFAR-10, 3,000 images, crops and flips"
LONG = f"{CROPPED}, 100 epochs"
AUTO, HALF = "isda:lambda_0=auto", "isda:lambda_0=0.5"
MIXED = {"mixup": "mixup", "mixup+isda:lambda_0=auto": "mixup and `auto` together"}


def few_images() -> list[str]:
    """Few images without augmentation."""
    table = planned_settings()[PLAIN]
    effects = [over_settings(figure, HALF) for figure in ("error", "nll")]
    overall = _link(f"{effects[0].problems} settings", "docs/evidence/few-images.md")
    found = {
        "`auto`": _both(table, AUTO),
        "λ0 = 0.5": _both(table, HALF),
        f"λ0 = 2 ({_link('other strengths', 'docs/evidence/strength.md')})": _both(
            sensitivity_table(PLAIN, "sensitivity"), "isda:lambda_0=2"
        ),
        f"λ0 = 0.5 over {overall}, with crops and without (not planned)": _pair(
            *(effect.interval for effect in effects)
        ),
    }
    scaled = [row for row in rows_of("refitting") if (row["setting"], row["network"]) == (PLAIN, CONTROL)]
    temperature = statistics.fmean(float(row["nll"]) for row in scaled if row["method"] == "temperature")
    others = [
        f"mixup: {_both(table, 'mixup')}",
        f"{_result('temperature scaling', 'refitting')} on 300 further images: {number(temperature)} nats",
        f"dropout ({_result('ten others', 'rivals')})",
    ]
    title = "A network trained from scratch on few images, no image augmentation"
    where = _result("CIFAR-10, 3,000 images, 20 epochs", "few_images")
    return [f"{title} ({where})", _control(table), _lines(found), BREAK.join(others)]


def augmented_images() -> list[str]:
    """The same with crops and flips."""
    tables = planned_settings()
    gain = mean_of(tables[CROPPED], CONTROL) - mean_of(tables[PLAIN], CONTROL)
    found = {
        "20 epochs, λ0 = 0.5": _both(tables[CROPPED], HALF),
        "100 epochs, λ0 = 0.5": _both(tables[LONG], HALF),
        "100 epochs, `auto`": _both(tables[LONG], AUTO),
    }
    return [
        f"The same with random crops and flips ({_result('20 and 100 epochs', 'few_images')})",
        _lines({"20 epochs": _control(tables[CROPPED]), "100 epochs": _control(tables[LONG])}),
        _lines(found),
        f"the crops and flips themselves: error {number(gain, 1, sign=True)}{BREAK}mixup is worse: "
        f"{_both(tables[CROPPED], 'mixup')}",
    ]


def embeddings() -> list[str]:
    """The estimator against logistic regression, over all problems."""
    tables = problem_figures()
    count = len(names(tables["error"]))
    base = statistics.fmean(
        statistics.fmean(methods["logistic regression"].values()) for methods in tables["error"].values()
    )
    developed, texts = "logistic regression", "logistic regression, raw rows"
    found = {
        f"{count} problems": _pair(problem_gain("error", developed), problem_gain("log_likelihood", developed)),
        "embedded texts": _pair(text_gain("error", texts), text_gain("nll", texts)),
    }
    lda = _pair(problem_gain("error", "LDA, shrunk"), problem_gain("log_likelihood", "LDA, shrunk"))
    where = f"{_result(f'{count} problems', 'problems')} that it was developed on, and "
    return [
        "Embeddings or tables, 5 to 100 labels per class, `ISDAClassifier`, λ0 by cross-validation "
        f"({where}{_result('texts', 'sentences')} by an encoder that it was not developed on)",
        f"logistic regression, tuned: {number(base, 1)}%",
        _lines(found),
        f"LDA with shrinkage (ISDAClassifier − LDA, {count} problems: {lda}){BREAK}ridge classifier (ISDAClassifier − "
        f"ridge, embedded texts: {_pair(text_gain('error', 'ridge'))})",
    ]


def fine_tuning() -> list[str]:
    """Pretrained networks: a convolutional one on images, a transformer on texts."""
    images, texts = (setting_tables(name) for name in ("finetune", "text_finetune"))
    tables = {**images, **{f"texts, {setting.partition(', ')[2]}": table for setting, table in texts.items()}}
    return [
        f"Fine-tuning a pretrained network ({_result('EfficientNet-Lite0', 'finetune')}, 1,000 images of 100 classes; "
        f"{_result('a sentence encoder', 'text_finetune')}, 20 newsgroups)",
        _lines({words: f"{number(mean_of(table, CONTROL), 1)}%" for words, table in tables.items()}),
        _lines({f"{words}, `auto`": _both(table, AUTO) for words, table in tables.items()}),
        "`ISDAClassifier` on the frozen network's embeddings",
    ]


def _by_share(tables: Mapping[str, FigureTable]) -> dict[str, FigureTable]:
    """Settings with wrong labels by their percentage."""
    return {setting.rpartition(", ")[2].partition(" ")[0]: own for setting, own in tables.items()}


def wrong_labels() -> list[str]:
    """Training images of which some have the label of another class."""
    tables = _by_share(wrong_label_settings())
    others = (
        f"{name}: {' and '.join(f'{_both(table, method)} ({share})' for share, table in tables.items())}"
        for method, name in MIXED.items()
    )
    where = _result("CIFAR-10, 3,000 images", "few_images")
    return [
        f"Few images, some with a wrong label, no image augmentation ({where})",
        _lines({f"{share} wrong": _control(table) for share, table in tables.items()}),
        _lines({f"{share} wrong, `auto`": _both(table, AUTO) for share, table in tables.items()}),
        BREAK.join([*others, "early stopping was not measured"]),
    ]


def _elsewhere() -> tuple[FigureTable, FigureTable, list[Interval | None]]:
    """Features for SVHN, long tails, and the effect of ISDA on semi-supervised algorithms."""
    transfer = table_of([row for row in rows_of("transfer") if row["data"] == "svhn_small"])
    tails = table_of([row for row in rows_of("longtail") if int(row["seed"]) < 100], ("error", "nll"))
    return transfer, tails, [analyse.semi_overall(rows_of("semi_composition"), name)[0] for name in ("error", "nll")]


def elsewhere() -> list[str]:
    """Unlabelled images, segmentation, transfer, long tails."""
    transfer, tails, semi = _elsewhere()
    pixels = analyse.camvid_table(rows_of("camvid"))
    found = {
        "added to mean teacher and VAT": _pair(*semi),
        "features of CIFAR-100 for SVHN": _both(transfer, "isda"),
        "long tails": _both(tails, "ISDA"),
        **{
            f"CamVid, {kind}, higher is better": _pair(pixels.family("miou").get(f"ISDA, {kind}"), name="mIoU")
            for kind in ("diagonal", "full")
        },
    }
    return [
        f"{_result('Unlabelled images', 'semi_composition')}, {_result('transfer', 'transfer')}, "
        f"{_result('long tails', 'longtail')}, {_result('segmentation', 'camvid')}",
        "",
        _lines(found),
        f"VAT instead of mean teacher: error, {_vat_gains()}{BREAK}long tails: logit adjustment, "
        f"{_pair(tails.family('error').get('logit adjustment'))}",
    ]


def _vat_gains() -> str:
    """The error of VAT − that of mean teacher, both without ISDA, by data set."""
    tables = analyse.semi_tables(rows_of("semi_composition"))
    return ", ".join(
        _pair(table.family("error").get("vat"), name=setting.partition(",")[0]) for setting, table in tables.items()
    )


def use_it() -> list[str]:
    """Six situations: what was measured, which strength, what else would do."""
    lines = analyse.head(["situation", "without ISDA", "with ISDA, by λ0", "alternatives"])
    situations = (few_images, augmented_images, wrong_labels, embeddings, fine_tuning, elsewhere)
    return [*lines, *(analyse.line(situation()) for situation in situations)]


def _brief(situation: str, strength: str, found: Mapping[str, list[Interval | None]], others: str) -> str:
    """A row of `summary`: both figures have a cell, with a line for each name."""
    cells = [
        _lines({name: _bold(gaps[at], digits) for name, gaps in found.items()}) for at, digits in enumerate((2, 3))
    ]
    return analyse.line([situation, strength, *cells, others])


def summary() -> list[str]:
    """The situations of `use_it` in short."""
    settings, wrong, fine = planned_settings(), wrong_label_settings(), setting_tables("finetune")
    texts = {setting.split(", ")[1]: own for setting, own in setting_tables("text_finetune").items()}
    rival = "logistic regression"
    transfer, tails, semi = _elsewhere()
    return [
        *analyse.head(["situation", "λ0", "test error, points", "negative log-likelihood, nats", "as good or better"]),
        _brief(
            f"{_result('3,000 images', 'few_images')} of CIFAR, no image augmentation, 20 epochs",
            "`auto`",
            {name: _gaps(settings[f"{name}, 3,000 images"], AUTO) for name in ("CIFAR-10", "CIFAR-100")},
            "mixup, dropout; for the probabilities, temperature scaling",
        ),
        _brief(
            f"{_result('3,000 images', 'few_images')} of CIFAR-10, random crops and flips",
            "0.5",
            {"20 epochs": _gaps(settings[CROPPED], HALF), "100 epochs": _gaps(settings[LONG], HALF)},
            "in 20 epochs, plain cross-entropy",
        ),
        _brief(
            f"The same images with {_result('wrong labels', 'few_images')}, no image augmentation, 20 epochs",
            "`auto`",
            {share: _gaps(own, AUTO) for share, own in _by_share(wrong).items()},
            "mixup; for the error, mixup and `auto` together",
        ),
        _brief(
            "Embeddings or tables, few labels: `ISDAClassifier` against logistic regression",
            "cross-validated",
            {
                _result("16 problems", "problems"): [problem_gain(name, rival) for name in ("error", "log_likelihood")],
                _result("texts", "sentences"): [text_gain(name, f"{rival}, raw rows") for name in ("error", "nll")],
            },
            "ridge classifier",
        ),
        _brief(
            f"Fine-tuning all layers: {_result('1,000 images', 'finetune')} of 100 classes, "
            f"{_result('texts', 'text_finetune')} with 10 or 50 labels per class",
            "`auto`",
            {"images": _gaps(fine["all layers"], AUTO)}
            | {f"texts, {words.split()[0]}": _gaps(own, AUTO) for words, own in texts.items()},
            "plain fine-tuning",
        ),
        _brief(
            f"{_result('Unlabelled images', 'semi_composition')}, {_result('transfer', 'transfer')} to SVHN, "
            f"{_result('long tails', 'longtail')}",
            "searched",
            {"unlabelled": semi, "transfer": _gaps(transfer, "isda"), "long tails": _gaps(tails, "ISDA")},
            "unlabelled: VAT instead of mean teacher; long tails: logit adjustment",
        ),
    ]


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
    "summary": summary,
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
