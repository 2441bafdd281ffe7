"""Rows of docs/deviations.md on classifiers: recipes, settings, losses of Table 5, semi-supervised learning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from deviation_words import Item, default, exponent, recipe_text, recipe_words, same, values_text
from isda.lab.data.augment import Cutout, RandAugment
from isda.lab.data.catalogue import CATALOGUE
from isda.lab.engine.settings import Recipe
from isda.lab.reproduce.classifier_trainings import SEMI_SUPERVISED_NETWORK, semi_supervised
from isda.lab.reproduce.costs import IMAGENET_NETWORKS
from isda.lab.reproduce.printed_tables import paper_table
from isda.lab.reproduce.runner import SEARCH_SEED
from isda.lab.reproduce.tables import (
    CIFAR_DATA,
    DROPOUT,
    LOSSES,
    RANDAUGMENT_GRID,
    RANDAUGMENT_M,
    RANDAUGMENT_N,
    SEMI_SUPERVISED_DATA,
    SEMI_SUPERVISED_METHODS,
    Table4,
    Table6,
)
from isda.lab.reproduce.training import SCALES, Training
from isda.lab.semi import defaults_for, inputs_for
from isda.lab.semi.regularisers import VATOptions
from isda.lab.tasks.classification.methods import find_method
from isda.lab.tasks.classification.pipelines import AUGMENTATIONS
from isda.lab.tasks.classification.settings import recipe_for
from isda.lab.tasks.classification.task import HELD_OUT
from isda.lab.tasks.detection.settings import RECIPE as DETECTION_RECIPE
from isda.lab.tasks.semi_supervised.settings import CONSISTENCY_WEIGHTS, REGULARISER_FACTORS, SemiSettings
from isda.lab.tasks.semi_supervised.task import HELD_OUT_LABELS

__all__ = ["augmentation_items", "classifier_items", "grid_text", "loss_items", "recipe_items", "semi_supervised_items"]

PAPER_SCALE = SCALES["paper"]
RECIPE_OPTIONS = "`--epochs`, `--batch-size`, `--lr`, ..."


def recipe_items() -> Iterable[Item]:
    """The rows of the paper's Table 9, and CNN-13 and ImageNet from its text."""
    printed = paper_table("table-9")
    for row in printed.rows:
        cells = {cell.column: cell.printed for cell in printed.cells if cell.row == row}
        milestones = [cells[name].removesuffix("th") for name in cells if name.startswith("lr milestone")]
        schedule = f"times {cells['lr factor']} after {', '.join(milestones)}" if milestones else "cosine"
        columns = ("total epochs", "batch size", "weight decay", "momentum", "initial lr")
        words = recipe_words([cells[column] for column in columns], schedule)
        recipe = recipe_for(row.lower().replace(" ", "-"))
        yield Item(f"{row} on CIFAR", words, same(words, recipe_text(recipe)), RECIPE_OPTIONS)
    words = recipe_words([400, 128, "1e-4", 0.9, 0.1], "cosine")
    ours = same(words, recipe_text(recipe_for(SEMI_SUPERVISED_NETWORK)))
    yield Item("CNN-13, semi-supervised", words, ours, RECIPE_OPTIONS)
    yield Item(
        "ImageNet",
        '300 epochs, batches of 512, lr 0.2, cosine; "the same L2 weight decay and momentum as CIFAR", which has two',
        recipe_text(recipe_for("resnet-50")),
        "`--weight-decay 5e-4`",
    )


def classifier_items() -> Iterable[Item]:
    """Strengths, covariances, seeds, precision."""
    strengths = recipe_for("resnet-110").method_grids["isda"]["lambda_0"]
    start = recipe_for("resnet-110").method_defaults["isda"]["lambda_0"]
    chosen = {network: recipe_for(network).method_defaults["isda"] for network in IMAGENET_NETWORKS.values()}
    by_value = {
        value: [name for name in chosen if chosen[name]["lambda_0"] == value]
        for value in sorted({options["lambda_0"] for options in chosen.values()})
    }
    tried = values_text(recipe_for("resnet-50").method_grids["isda"]["lambda_0"])
    yield Item(
        "λ0 on CIFAR",
        "chosen from 0.1, 0.25, 0.5, 0.75, 1 on 5,000 held-out training images, which are then put back",
        f"`isda reproduce` and `isda tune`: from {values_text(strengths)} on {HELD_OUT:,}, one run of each with seed "
        f"{SEARCH_SEED}; `isda train`: {start:g}",
        "`--lambda-0`; `isda tune --search lambda_0=... --choose-seeds N`",
    )
    yield Item(
        "λ0 on ImageNet",
        "chosen from 1, 2.5, 5, 7.5, 10; 1 for DenseNets, 5 for ResNet-101, 7.5 for the others",
        "the paper's choice, not searched: "
        + "; ".join(f"{value:g} for {', '.join(names)}" for value, names in by_value.items()),
        f"`isda tune --data imagenet`: from {tried}",
    )
    yield Item(
        "Covariances",
        "full on CIFAR; their diagonals on ImageNet and Cityscapes, to save memory",
        f"{recipe_for('resnet-110').method_defaults['isda']['covariance']}; "
        f"{recipe_for('resnet-50').method_defaults['isda']['covariance']} on both",
        "`isda:covariance=low_rank`, `full`, ...",
    )
    yield Item(
        "Bound",
        "Propositions 1 and 2",
        f"`{recipe_for('resnet-110').method_defaults['isda']['bound']}`, the same",
        "`isda:bound=tilted` (ours, never looser)",
    )
    yield Item(
        "Result of a run",
        "mean test error of the last 10 epochs",
        f"of the last {recipe_for('resnet-110')['average_last']} epochs; segmentation and detection: "
        f"{_averaged(DETECTION_RECIPE)}",
    )
    yield Item(
        "Seeds",
        "five runs on CIFAR and SVHN",
        f"{PAPER_SCALE.seeds} of every cell, ImageNet, Cityscapes and COCO included",
        "`--seeds`",
    )
    yield Item(
        "Precision",
        "not said",
        f"{default(SemiSettings, 'precision')}",
        "`--precision bfloat16`, of `isda train` and `isda reproduce`",
    )
    yield Item(
        "Several GPUs",
        "not said",
        "one process per run",
        "`--processes-per-run`: ISDA's statistics and the loss are those of the whole batch",
    )


def _averaged(recipe: Recipe) -> str:
    count = recipe["average_last"]
    return "after the last epoch" if count == 1 else f"of the last {count} epochs"


def augmentation_items() -> Iterable[Item]:
    """Image augmentations of Table 4."""
    size, after = _cutout("cutout"), _cutout("autoaugment")
    yield Item(
        "Cutout (Table 4)",
        "the size of the hole is not said; 16 pixels in the authors' code, on both CIFAR sets",
        f"{size} pixels, on both",
        "not an option; its publication has 8 on CIFAR-100",
    )
    yield Item(
        "AutoAugment (Table 4)",
        "which policy is not said; in the authors' code that of CIFAR-10, then Cutout, on both CIFAR sets",
        f"the same, with Cutout of {after} pixels",
    )
    chosen, with_isda = (cell.training for cell in Table4().selected(["RandAugment", "Wide-ResNet-28-10", "CIFAR-10"]))
    yield Item(
        "RandAugment's N and M (Table 4)",
        "not said; its publication chooses them for each network and data set on 5,000 held-out images",
        f"chosen for each network and data set on {HELD_OUT:,} held-out images, without ISDA, from N = "
        f"{values_text(RANDAUGMENT_N)} and M = {values_text(RANDAUGMENT_M)} ({chosen.trials(PAPER_SCALE)} runs); the "
        f"row with ISDA takes them and chooses its λ0 ({with_isda.trials(PAPER_SCALE)} runs). No Cutout after it",
        "`isda train --augment randaugment-3-5`: N = 3, M = 5 of 0 to 30; `randaugment` alone is "
        f"{_rand_augment()}; `isda tune --search {RANDAUGMENT_GRID[0].partition(',')[0]},...`",
    )


def _cutout(augment: str) -> int:
    """The side of the hole that an augmentation cuts; the same on both CIFAR sets."""
    (length,) = {one.length for one in _transforms(augment) if isinstance(one, Cutout)}
    return length


def _rand_augment() -> str:
    (one,) = {(one.num_ops, one.magnitude) for one in _transforms("randaugment") if isinstance(one, RandAugment)}
    return f"N = {one[0]}, M = {one[1]}"


def _transforms(augment: str) -> list[object]:
    statistics = (0.5, 0.5, 0.5)
    pipelines = (AUGMENTATIONS[augment](statistics, statistics, data) for data in CIFAR_DATA.values())
    return [transform for pipeline in pipelines for transform in pipeline.transforms]


PAPER_LOSSES = {
    "Large Margin": ("not said", "the authors' code for CIFAR-10; the decay is stretched to the length of the run"),
    "Disturb Label": ("rate 0.05; 0.1 for ResNet-110 on CIFAR-100", "as the paper"),
    "Focal Loss": ("α = 0.5 and γ = 1, chosen on held-out images", "as the paper"),
    "Center Loss": (
        "an initial learning rate of the centres of 0.5; the weight and the schedule of the rate are not said",
        "the paper's rate, falling with that of the network; the weight is its publication's",
    ),
    "Lq Loss": ("q = 0.4", "as the paper; 0.7 in its publication"),
    "Label Smoothing": ("not said", "Szegedy et al., 2016"),
    "DistributionNet": ("not said", "the authors' code; [what is ours](rivals.md)"),
}
"""What the paper's appendix says of the losses of Table 5, and whose our settings are."""


def loss_items() -> Iterable[Item]:
    """Robust losses and Dropout of Table 5."""
    assert list(PAPER_LOSSES) == list(LOSSES)
    for row, method in LOSSES.items():
        paper, whose = PAPER_LOSSES[row]
        (name, values), *_ = find_method(method).grid.items()
        yield Item(
            f"{row} (`{method}`)",
            paper,
            f"{_loss_text(method)} ({whose}); not searched",
            f"`--method {method}:{name}={values[-1]:g}`; `isda tune --methods {method}`: from {values_text(values)}",
        )
    yield Item(
        "Dropout rows",
        "rate 0.3, if dropout is not part of the basic model",
        f"{DROPOUT:g} for ResNet-110; Wide-ResNet-28-10 has its own in all rows",
        "`--dropout`",
    )


def _loss_text(method: str) -> str:
    """The options of a loss in Table 5, first those that most of its columns have."""
    options: dict[str, list[str]] = {}
    for column in paper_table("table-5").columns:
        network, title = column.rsplit(" ", 1)
        text = _options_text(method, recipe_for(network.lower(), CIFAR_DATA[title]))
        options.setdefault(text, []).append(f"{network} on {title}")
    usual, *others = sorted(options, key=lambda text: -len(options[text]))
    return "; ".join([usual, *(f"{text} for {' and '.join(options[text])}" for text in others)])


def _options_text(method: str, recipe: Recipe) -> str:
    found = find_method(method)
    values: Mapping[str, Any] = {f.name: f.default for f in fields(found.Options)} | found.resolve("", recipe)
    return ", ".join(f"{name}={value:g}" for name, value in values.items() if value is not None)


def semi_supervised_items() -> Iterable[Item]:
    """Batches, choices and weights of Table 6."""
    batch = recipe_for(SEMI_SUPERVISED_NETWORK)["batch_size"]
    methods = SEMI_SUPERVISED_METHODS.items()
    (equal,) = {_composition(method, None, batch) for _, method in methods}
    published = [f"{title}: {_composition(method, 'published', batch)}" for title, method in methods]
    yield Item(
        "What a batch is made of",
        'batches of 128, "following" Verma et al. (2019), whose two loaders give as many labelled as unlabelled images',
        f"{equal} labelled beside {batch} unlabelled images, for every method; the labelled loss is a mean over the "
        "labelled ones",
        f"`--labelled-per-batch published`, the proportions of the methods' own publications beside {batch} unlabelled "
        f"images, columns of Table 6 from left to right ({'; '.join(published)}); `--labelled-per-batch N`",
    )
    plain, with_isda = (semi_supervised("cifar10", method, 4000) for method in ("vat", "vat+isda"))
    yield Item(
        "What is chosen on held-out labels",
        '25% of the labels select λ0, η1 and η2; the baselines have "the same hyper-parameter settings and searching '
        'policies" as in their publications',
        f"{HELD_OUT_LABELS:.0%} of the labels, drawn with seed {SEARCH_SEED}, the same for a method with and without "
        f"ISDA. η2 is searched for both: without ISDA {grid_text(plain)}, with it {grid_text(with_isda)}",
        "a value in the method string is not searched: `vat+isda:eta_2=1`",
    )
    yield Item("η1", "from 0.5, 1, 2", f"from {values_text(CONSISTENCY_WEIGHTS)}", "`vat+isda:eta_1=...`")
    yield Item(
        "η2",
        "selected; from what is not said",
        f"from {values_text(REGULARISER_FACTORS)} times the publication's weight",
        "`isda tune --search eta_2=...`",
    )
    weights = [_published_weight(title, method) for title, method in SEMI_SUPERVISED_METHODS.items()]
    yield Item(
        "The publications' weight",
        "not said",
        f"{'; '.join(weights)}. Where a publication divides the labelled sum by the whole batch, its weight is divided "
        "by the share of labelled images there, so that the terms keep their proportion",
        "`mean_over=batch` with `--labelled-per-batch published`: the publication's objective, number by number",
    )
    prepared = {title: inputs_for(data).normalisation for title, data in SEMI_SUPERVISED_DATA.items()}
    yield Item(
        "Normalisation",
        "ZCA whitening on CIFAR; SVHN is not said",
        "; ".join(f"{title}: {name}" for title, name in prepared.items()),
    )
    deviation = defaults_for("vat", "svhn").image_deviation
    epsilon = defaults_for("vat", "svhn").options["epsilon"]
    yield Item(
        "VAT's ε on SVHN",
        f"as published: {epsilon:g} for pixels in -0.5..0.5",
        f"{epsilon:g} / {deviation:g} = {epsilon / deviation:.0f}, for images of unit variance",
        "`vat:epsilon=...`",
    )
    yield Item(
        "VAT's ξ",
        "as published: 1e-6 in the authors' code",
        f"{exponent(default(VATOptions, 'xi'))}, which float32 can resolve",
        "`vat:xi=1e-6`",
    )


def _composition(method: str, per_batch: Any, batch: int) -> str:
    """Labelled images beside a batch of unlabelled ones, for every column of Table 6 that has the method."""
    settings, counts = SemiSettings(labelled_per_batch=per_batch), []
    for cell in Table6().cells():
        training = cell.training
        if training.method == method:
            data, labels = str(training.settings.data), int(training.settings.labels)
            images = CATALOGUE[data].train
            counts.append(settings.labelled_beside(batch, defaults_for(method, data), labels, images))
    return ", ".join(map(str, counts)) if len(set(counts)) > 1 else str(counts[0])


def _published_weight(title: str, method: str) -> str:
    weights = {data: defaults_for(method, data).weight_for(4000, 50_000, 0).final for data in ("cifar10", "cifar100")}
    texts = [f"{weight:g}" for weight in dict.fromkeys(weights.values())]
    return f"{title}: {' ('.join(texts)}{' on CIFAR-100)' if len(texts) > 1 else ''}"


def grid_text(training: Training) -> str:
    """The settings that held-out data choose, and the runs that this takes."""
    sizes = {name: len(values) for name, values in training.grid().items() if f"{name}=" not in training.method}
    names = {"lambda_0": "λ0", "eta_1": "η1", "eta_2": "η2"}
    product = " x ".join(f"{size} {names[name]}" for name, size in sizes.items())
    total = training.trials(PAPER_SCALE)
    return f"{product} = {total} runs" if len(sizes) > 1 else f"{total} runs"
