"""The tables of docs/evidence/index.md: every situation that was measured, in the table that its intervals say."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import analyse
from evidence_figures import (
    AUGMENTATIONS,
    CONTROL,
    PLANNED,
    TRAINED,
    planned_settings,
    problem_gain,
    rows_of,
    sensitivity_table,
    setting_tables,
    table_of,
    text_gain,
    unlabelled_tables,
    verdict,
    wrong_label_settings,
)
from figure_tables import FigureTable
from isda.lab.report.statistics import Interval, compare_pairs, paired_cells
from isda.lab.report.wording import difference_text

__all__ = ["Situation", "does_not_help", "each_method", "helps", "situations"]

Differences = Mapping[str, Interval | None]
"""By method or problem; the name is empty where there is one difference."""
METHODS = {name: words for name, words in PLANNED.items() if name.startswith("isda")}
MIXED = "mixup+isda:lambda_0=auto"
TITLES = {"finetuning": "fine-tuning", "longtail": "long tails", "semi": "semi-supervised"}
"""Of pages whose name does not read as one."""
LEAST_NATS = 0.01
"""Smaller differences of the likelihood do not count."""
EARLIER = ("rivals", "auto", "demo", "transfer", "unlabelled")
"""Pages of measurements that were made before benchmarks/plan.md."""


@dataclass(frozen=True)
class Situation:
    """Differences of ISDA to the same training without it."""

    words: str
    page: str
    """The name of a page of docs/evidence."""
    errors: Differences
    nll: Differences = field(default_factory=dict)
    others: Differences = field(default_factory=dict)
    """Errors of other methods, which are shown and do not decide."""
    things: str = ""
    """What the differences are counted by, such as problems; empty where each is shown."""
    rising: bool = False
    """Whether more is better."""

    @property
    def helps(self) -> bool:
        """Whether ISDA is better: by the error, or by the likelihood if no interval of the error excludes zero."""
        for differences, least in ((self.errors, 0.0), (self.nll, LEAST_NATS)):
            clear = [found.mean for found in differences.values() if found is not None and found.excludes_zero]
            if any(abs(mean) >= least for mean in clear):
                return all((mean > 0) == self.rising for mean in clear)
        return False

    def row(self) -> str:
        """A row of a table."""
        error = "; ".join(filter(None, [self._cell(self.errors, 2), _each(self.others, 2)]))
        link = f"[{TITLES.get(self.page, self.page.replace('-', ' '))}](docs/evidence/{self.page}.md)"
        link += ", before the plan" if self.page in EARLIER else ""
        return analyse.line([self.words, error, self._cell(self.nll, 3), link])

    def _cell(self, differences: Differences, digits: int) -> str:
        return _counts(differences, self.things) if self.things else _each(differences, digits)


def _each(differences: Differences, digits: int) -> str:
    """Every difference with its verdict."""
    return "; ".join(
        f"{name}{': ' if name else ''}{verdict(found)}, {difference_text(found, digits)}"
        for name, found in differences.items()
    )


def _counts(differences: Differences, things: str) -> str:
    """How many intervals lie below and above zero."""
    if not differences:
        return ""
    found = [verdict(difference) for difference in differences.values()]
    words = [f"{word} for {found.count(word)}" for word in ("**lower**", "**higher**") if word in found]
    return f"{' and '.join(words) or 'no difference found for any'} of {len(found)} {things}"


def _both(table: FigureTable, method: str, name: str = "") -> tuple[Differences, Differences]:
    """Differences of the error and of the negative log-likelihood to the control."""
    error, nll = ({name: table.family(figure).get(method)} for figure in ("error", "nll"))
    return error, nll


def each_method(words: str, page: str, table: FigureTable) -> list[Situation]:
    """ISDA by its strength against cross-entropy: together, or one by one if they are in different tables."""
    methods = {words: name for name, words in METHODS.items() if name in table.values}
    error, nll = (
        {words: table.family(figure).get(name) for words, name in methods.items()} for figure in ("error", "nll")
    )
    alone = [Situation(f"{words}: {name}", page, {"": error[name]}, {"": nll[name]}) for name in methods]
    agreed = len({situation.helps for situation in alone}) == 1
    return [Situation(words, page, error, nll)] if agreed else alone


def added_to_mixup(settings: Mapping[str, FigureTable]) -> tuple[Differences, Differences]:
    """Differences of mixup with auto to mixup, where a setting has both."""
    pairs = {setting: table for setting, table in settings.items() if MIXED in table.values}
    error, nll = (
        {
            setting: compare_pairs(paired_cells(table.by_seed(figure)), {MIXED: (MIXED, "mixup")}).get(MIXED)
            for setting, table in pairs.items()
        }
        for figure in ("error", "nll")
    )
    return error, nll


def few_images() -> Iterator[Situation]:
    """The planned settings, each strength against cross-entropy, and auto added to mixup."""
    settings = planned_settings()
    for setting, table in settings.items():
        images = setting if "crops" in setting else f"{setting}, no image augmentation"
        yield from each_method(f"few images: {images}", "few-images", table)
    yield Situation("few images: `auto` added to mixup", "few-images", *added_to_mixup(settings), things="settings")


def rivals() -> Iterator[Situation]:
    """Strengths that were searched for each method."""
    table = table_of(rows_of("rivals"))
    others = {"mixup": "mixup", "dropout": "cross-entropy, dropout"}
    gains = {words: table.family("error").get(method) for words, method in others.items()}
    words = "CIFAR-10, 3,000 images, no image augmentation, λ0 searched"
    yield Situation(words, "rivals", *_both(table, "isda", "ISDA"), others=gains)
    error, nll = ({"": table.isda_family(figure).get("mixup+isda")} for figure in ("error", "nll"))
    yield Situation(f"{words}, ISDA added to mixup", "rivals", error, nll)


def strengths() -> Iterator[Situation]:
    """Fixed strengths and both bounds, with and without image augmentation."""
    for setting, words in AUGMENTATIONS.items():
        table = sensitivity_table(setting, "sensitivity")
        methods = [method for method in table.values if method != CONTROL]
        error, nll = ({method: table.family(figure).get(method) for method in methods} for figure in ("error", "nll"))
        title = f"CIFAR-10, 3,000 images, {words}, strengths from 0.1 to 10 of both bounds"
        yield Situation(title, "strength", error, nll, things="strengths")


def automatic() -> Iterator[Situation]:
    """The earlier measurement of auto."""
    tables = setting_tables("auto")
    for words, crops in {"no image augmentation": False, "crops and flips": True}.items():
        own = {setting: table for setting, table in tables.items() if ("crops" in setting) == crops}
        error, nll = (
            {setting: table.family(figure).get("isda:lambda_0=auto") for setting, table in own.items()}
            for figure in ("error", "nll")
        )
        yield Situation(f"λ0 by `auto`, {words}", "auto", error, nll, things="settings")


def digits() -> Iterator[Situation]:
    """The demo, and calibration where λ0 was chosen by the error."""
    demo, table = table_of(rows_of("demo")), table_of(rows_of("rivals"))
    bounds = {"isda": "published bound", "isda-tilted": "tilted bound"}
    for method, bound in bounds.items():
        yield Situation(f"200 digits, {bound}, λ0 searched", "demo", *_both(demo, method))
    calibration = {
        f"calibration error, {bound}": demo.family("calibration").get(method) for method, bound in bounds.items()
    }
    yield Situation("calibration where λ0 was chosen by the error: 200 digits", "demo", calibration)
    calibration = {
        f"calibration error, {bound}": table.family("calibration").get(method) for method, bound in bounds.items()
    }
    yield Situation("calibration where λ0 was chosen by the error: CIFAR-10, 3,000 images", "rivals", calibration)


def classifiers() -> Iterator[Situation]:
    """ISDAClassifier against logistic regression, and `isda.refit` against the network as it is."""
    rival = "logistic regression"
    error, nll = ({"": problem_gain(figure, rival)} for figure in ("error", "log_likelihood"))
    words = "`ISDAClassifier` against logistic regression, few labels:"
    yield Situation(f"{words} the problems that it was developed on", "few-labels", error, nll)
    error, nll = ({"": text_gain(figure, f"{rival}, raw rows")} for figure in ("error", "nll"))
    yield Situation(f"{words} texts by an encoder that it was not developed on", "few-labels", error, nll)
    rows = rows_of("refitting")
    networks = dict.fromkeys((row["setting"], row["network"]) for row in rows)
    tables = {
        str(network): table_of(
            [row for row in rows if (row["setting"], row["network"]) == network], ("nll",), control="unchanged"
        )
        for network in networks
    }
    refit_nll = {network: table.family("nll").get("refit") for network, table in tables.items()}
    refit_error = {
        str(network): table.family("error").get("refit") for network, table in analyse.refitted_errors(rows).items()
    }
    words = "the classifier of a network fitted again by `isda.refit`"
    yield Situation(words, "refit", refit_error, refit_nll, things="networks")


def fine_tuning() -> Iterator[Situation]:
    """Pretrained networks."""
    files = {"finetune": "fine-tuning EfficientNet-Lite0", "text_finetune": "fine-tuning a sentence encoder"}
    for file, words in files.items():
        for setting, table in setting_tables(file).items():
            yield from each_method(f"{words}: {setting}", "finetuning", table)


def semi_supervised() -> Iterator[Situation]:
    """ISDA added to semi-supervised algorithms."""
    rows = rows_of("semi_composition")
    error, nll = ({"": analyse.semi_overall(rows, figure)[0]} for figure in ("error", "nll"))
    yield Situation("ISDA added to semi-supervised algorithms", "semi", error, nll)


def robustness() -> Iterator[Situation]:
    """Corrupted test images, and wrong labels of training images."""
    for setting, table in setting_tables("robustness").items():
        yield from each_method(f"corrupted test images: {setting}", "robustness", table)
    for setting, table in wrong_label_settings().items():
        yield from each_method(f"wrong labels: {setting}", "robustness", table)
    yield Situation("wrong labels: `auto` added to mixup", "robustness", *added_to_mixup(wrong_label_settings()))


def other_tasks() -> Iterator[Situation]:
    """Transfer, segmentation, long tails, unlabelled rows."""
    for data, words in {"cifar10": "CIFAR-10", "svhn_small": "SVHN"}.items():
        table = table_of([row for row in rows_of("transfer") if row["data"] == data])
        yield Situation(f"features of CIFAR-100 for another task: {words}", "transfer", *_both(table, "isda"))
    pixels = analyse.camvid_table(rows_of("camvid"))
    kinds = {
        f"mIoU, {method.removeprefix('ISDA, ')}": pixels.family("miou").get(method)
        for method in pixels.values
        if method != CONTROL
    }
    yield Situation("segmentation, 450 steps from random weights", "segmentation", kinds, rising=True)
    tails = table_of([row for row in rows_of("longtail") if int(row["seed"]) < 100], ("error", "nll"))
    other = {"logit adjustment": tails.family("error").get("logit adjustment")}
    words = "classes of very different sizes, ISDA alone"
    yield Situation(words, "longtail", *_both(tails, "ISDA", "ISDA"), others=other)
    problems = unlabelled_tables()
    error = {problem: table.family("error").get(f"{TRAINED}1") for problem, table in problems.items()}
    yield Situation("unlabelled rows of embeddings, consistency bound", "unlabelled", error, things="problems")


SOURCES: tuple[Callable[[], Iterator[Situation]], ...] = (
    few_images,
    rivals,
    strengths,
    automatic,
    digits,
    classifiers,
    fine_tuning,
    semi_supervised,
    robustness,
    other_tasks,
)


def situations() -> list[Situation]:
    """All of them."""
    return [situation for source in SOURCES for situation in source()]


def _table(*, better: bool) -> list[str]:
    lines = analyse.head(["situation", "test error, points", "negative log-likelihood, nats", "page"])
    return [*lines, *(situation.row() for situation in situations() if situation.helps == better)]


def helps() -> list[str]:
    """The situations in which ISDA is better."""
    return _table(better=True)


def does_not_help() -> list[str]:
    """The situations in which ISDA is worse, or no difference was found."""
    return _table(better=False)
