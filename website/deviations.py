"""docs/deviations.md, item by item from the paper to the recipes: python website/deviations.py writes it.

What the paper says is typed; what this package does is read from its recipes, settings and experiments.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from isda import networks
from isda._utils.errors import expect_type
from isda.data.catalogue import CATALOGUE
from isda.engine.config import TrainingConfig
from isda.engine.settings import Recipe
from isda.networks.cost import count_parameters
from isda.networks.shake_shake import ShakeBlock, ShiftedShortcut
from isda.reproduce.classifier_trainings import CHECKPOINTS, SEMI_SUPERVISED_NETWORK, semi_supervised
from isda.reproduce.costs import CIFAR_NETWORKS, IMAGENET_NETWORKS
from isda.reproduce.printed_tables import paper_table
from isda.reproduce.runner import SEARCH_SEED
from isda.reproduce.tables import DROPOUT, SEMI_SUPERVISED_DATA, SEMI_SUPERVISED_METHODS, Table6
from isda.reproduce.training import SCALES, Training
from isda.semi import defaults_for, inputs_for
from isda.semi.regularisers import VATOptions
from isda.tasks.classification.settings import recipe_for
from isda.tasks.classification.task import HELD_OUT
from isda.tasks.detection.settings import RECIPE as DETECTION_RECIPE
from isda.tasks.gan.settings import STEPS as GAN_STEPS
from isda.tasks.segmentation.settings import BATCH_SIZE as SEGMENTATION_BATCH
from isda.tasks.segmentation.settings import STEPS as SEGMENTATION_STEPS
from isda.tasks.segmentation.settings import SegmentationSettings
from isda.tasks.segmentation.settings import recipe_for as segmentation_recipe
from isda.tasks.semi_supervised.settings import CONSISTENCY_WEIGHTS, REGULARISER_FACTORS, SemiSettings
from isda.tasks.semi_supervised.task import HELD_OUT_LABELS

__all__ = ["PAGE", "page"]

PAGE = Path(__file__).parent.parent / "docs" / "deviations.md"
PAPER_SCALE = SCALES["paper"]
CITYSCAPES_STEPS_PER_EPOCH = 2975 // SEGMENTATION_BATCH

HEADING = """\
# Where this differs from the paper

<!-- Written by `make docs-tables` from the recipes; do not edit. -->

Item by item: what the paper says, what `isda train` and `isda reproduce --scale paper` do by default, and which option
gives the other. What the paper leaves open is listed too, with what we chose. Smaller scales differ by what
[their table](reproduce.md#scales) says, and every reproduced page lists the differences of its trainings.
"""


class Item(NamedTuple):
    """A row of the page."""

    subject: str
    paper: str
    ours: str
    option: str = ""


def page() -> str:
    """The whole page as Markdown."""
    sections = {
        "Classifiers": [*_recipes(), *_classifiers()],
        "Semi-supervised learning (Table 6)": _semi_supervised(),
        "Segmentation, detection, generators (Tables 5, 7, 11, 12)": _other_tasks(),
        "Tables and figures": _experiments(),
        "Counts (Tables 1 to 3)": _counts(),
    }
    parts = [HEADING]
    for title, items in sections.items():
        parts += [f"## {title}\n", "| | the paper | here, by default | the other |", "|---|---|---|---|"]
        parts += [f"| {' | '.join(item)} |" for item in items]
        parts.append("")
    return "\n".join(parts)


def _recipes() -> Iterable[Item]:
    """The rows of the paper's Table 9, and CNN-13 and ImageNet from its text."""
    printed = paper_table("table-9")
    for row in printed.rows:
        cells = {cell.column: cell.printed for cell in printed.cells if cell.row == row}
        milestones = [cells[name].removesuffix("th") for name in cells if name.startswith("lr milestone")]
        schedule = f"times {cells['lr factor']} after {', '.join(milestones)}" if milestones else "cosine"
        columns = ("total epochs", "batch size", "weight decay", "momentum", "initial lr")
        words = _recipe_words([cells[column] for column in columns], schedule)
        recipe = recipe_for(row.lower().replace(" ", "-"))
        yield Item(f"{row} on CIFAR", words, _same(words, _recipe_text(recipe)), _RECIPE_OPTIONS)
    words = _recipe_words([400, 128, "1e-4", 0.9, 0.1], "cosine")
    ours = _same(words, _recipe_text(recipe_for(SEMI_SUPERVISED_NETWORK)))
    yield Item("CNN-13, semi-supervised", words, ours, _RECIPE_OPTIONS)
    yield Item(
        "ImageNet",
        '300 epochs, batches of 512, lr 0.2, cosine; "the same L2 weight decay and momentum as CIFAR", which has two',
        _recipe_text(recipe_for("resnet-50")),
        "`--weight-decay 5e-4`",
    )


def _classifiers() -> Iterable[Item]:
    strengths = recipe_for("resnet-110").method_grids["isda"]["lambda_0"]
    start = recipe_for("resnet-110").method_defaults["isda"]["lambda_0"]
    chosen = {network: recipe_for(network).method_defaults["isda"] for network in IMAGENET_NETWORKS.values()}
    by_value = {
        value: [name for name in chosen if chosen[name]["lambda_0"] == value]
        for value in sorted({options["lambda_0"] for options in chosen.values()})
    }
    tried = _values(recipe_for("resnet-50").method_grids["isda"]["lambda_0"])
    yield Item(
        "λ0 on CIFAR",
        "chosen from 0.1, 0.25, 0.5, 0.75, 1 on 5,000 held-out training images, which are then put back",
        f"`isda reproduce` and `isda tune`: from {_values(strengths)} on {HELD_OUT:,}, one run of each with seed "
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
        f"of the last {recipe_for('resnet-110')['average_last']} epochs; of the last "
        f"{DETECTION_RECIPE['average_last']} in segmentation and detection",
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
        f"{_default(SemiSettings, 'precision')}",
        "`--precision bfloat16`, of `isda train` and `isda reproduce`",
    )
    yield Item(
        "Several GPUs",
        "not said",
        "one process per run",
        "`--processes-per-run`: ISDA's statistics and the loss are those of the whole batch",
    )
    yield Item(
        "Dropout row of Table 5",
        "0.3, if it is not part of the basic model",
        f"{DROPOUT:g} for ResNet-110; Wide-ResNet-28-10 has its own in all rows",
        "`--dropout`",
    )


def _semi_supervised() -> Iterable[Item]:
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
        f"ISDA. η2 is searched for both: without ISDA {_grid(plain)}, with it {_grid(with_isda)}",
        "a value in the method string is not searched: `vat+isda:eta_2=1`",
    )
    yield Item("η1", "from 0.5, 1, 2", f"from {_values(CONSISTENCY_WEIGHTS)}", "`vat+isda:eta_1=...`")
    yield Item(
        "η2",
        "selected; from what is not said",
        f"from {_values(REGULARISER_FACTORS)} times the publication's weight",
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
    yield Item(
        "Figure 11, semi-supervised panel",
        "VAT + ISDA at several λ0; the other weights are not said",
        f"held-out labels choose them for each λ0: {_grid(semi_supervised('cifar10', 'vat+isda:lambda_0=0.5', 4000))}; "
        f"for VAT alone {_grid(plain)}",
        "`isda study sensitivity --methods vat+isda`: η1 = 1 and the published η2 at every λ0",
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
        f"{_exponent(_default(VATOptions, 'xi'))}, which float32 can resolve",
        "`vat:xi=1e-6`",
    )


def _other_tasks() -> Iterable[Item]:
    segmentation = segmentation_recipe(CITYSCAPES_STEPS_PER_EPOCH)
    options = segmentation.method_defaults["isda"]
    yield Item(
        "Segmentation",
        '"the standard hyper-parameters" of a public toolbox',
        f"the authors' code: crops of {_default(SegmentationSettings, 'crop')}, batches of {SEGMENTATION_BATCH}, "
        f"{SEGMENTATION_STEPS:,} steps, lr {segmentation['lr']:g} falling to 0 as (1 - t/T)^0.9, weight decay "
        f"{_exponent(segmentation['weight_decay'])}",
        "`isda segment train --crop`, `--epochs`, `--lr`, ...",
    )
    yield Item(
        "λ0 on Cityscapes",
        "not said",
        f"{options['lambda_0']:g}, the default of the authors' code, not searched",
        "`--lambda-0`; `isda tune`",
    )
    yield Item(
        "Random scales of crops",
        "not said; 0.7, 0.8, ... 2.1 in the toolbox",
        f"{_default(SegmentationSettings, 'smallest_scale'):g} to {_default(SegmentationSettings, 'largest_scale'):g}",
        "`--smallest-scale`, `--largest-scale`",
    )
    yield Item(
        "Detectors",
        "MMDetection's default configuration",
        f"its 1x schedule in our implementation: {DETECTION_RECIPE['epochs']} epochs, batches of "
        f"{DETECTION_RECIPE['batch_size']}, lr {DETECTION_RECIPE['lr']:g}, times 0.1 after "
        f"{_values(DETECTION_RECIPE['milestones'])}",
        "`isda detect train --epochs`, `--lr`, ...",
    )
    yield Item(
        "Backbones of detectors",
        "the ResNet-50s of Table 1",
        "those of the first seed; `Original` rows: torchvision's weights",
        "`isda detect train --backbone RUN`",
    )
    yield Item(
        "Length of GAN trainings",
        "not said",
        f"{GAN_STEPS:,} steps",
        "`isda generate train --epochs`",
    )


def _experiments() -> Iterable[Item]:
    trainings = Table6().trainings()
    trials = sum(training.trials(PAPER_SCALE) for training in trainings)
    yield Item(
        "Runs of Table 6",
        "5 per cell, and those of the searches",
        f"{trials + PAPER_SCALE.seeds * len(trainings):,}: {PAPER_SCALE.seeds} of each of {len(trainings)} cells, and "
        f"{trials:,} on held-out labels",
        "`isda reproduce list --scale paper` counts them",
    )
    yield Item(
        "Results of other papers",
        'quoted ("reported in", "Original" of DeepLab-v3)',
        "shown, not reproduced",
    )
    yield Item(
        "Figure 9",
        "bounds over the training of ResNet-110",
        f"at {CHECKPOINTS} checkpoints of the first seed of Table 2, and the tilted bound as a third line",
        "`isda tightness RUN`",
    )
    yield Item("Figures 1 to 4 and 12", "drawings", "not made")


def _counts() -> Iterable[Item]:
    printed = paper_table("table-2")
    for row, name in CIFAR_NETWORKS.items():
        if not name.startswith("shake-shake"):
            continue
        with torch.device("meta"):
            network = networks.create(name, num_classes=10)
            own = count_parameters(network)
            blocks = [block for block in network.modules() if isinstance(block, ShakeBlock)]
            equal = [block for block in blocks if isinstance(block.shortcut, nn.Identity)]
            widths = [expect_type(block.left[1], nn.Conv2d).in_channels for block in equal]
            unused = sum(count_parameters(ShiftedShortcut(width, width, 1)) for width in widths)
        cell = printed.cell(row, "parameters")
        assert cell is not None
        yield Item(
            f"Parameters of {row}",
            f"{cell.printed}, which includes shortcuts that the authors' code builds in every block and uses only "
            "where the shape changes",
            f"{own / 1e6:.2f}M with 10 classes; with the {unused / 1e6:.2f}M of those {len(widths)} unused shortcuts, "
            f"{(own + unused) / 1e6:.1f}M",
        )
    yield Item(
        "Parameters and multiply-adds of Tables 2 and 3",
        "one column for both CIFAR sets",
        "counted with 100 classes, which is nearer to the printed numbers",
    )
    yield Item(
        "Times of Tables 1 and 3",
        "of the authors' GPUs",
        "of this machine, cross-entropy and ISDA alternating on the same batch",
        "`--device`",
    )


_RECIPE_OPTIONS = "`--epochs`, `--batch-size`, `--lr`, ..."


def _recipe_words(values: Sequence[object], schedule: str) -> str:
    epochs, batch, decay, momentum, lr = values
    return f"{epochs} epochs, batches of {batch}, weight decay {decay}, momentum {momentum}, lr {lr}, {schedule}"


def _recipe_text(recipe: Recipe) -> str:
    """A recipe in the words of the paper's Table 9."""
    values: dict[str, Any] = {f.name: f.default for f in fields(TrainingConfig)} | dict(recipe.values)
    milestones = ", ".join(map(str, values["milestones"]))
    schedule = f"times {values['lr_factor']:g} after {milestones}" if values["schedule"] == "steps" else "cosine"
    rates = (_exponent(values["weight_decay"]), f"{values['momentum']:g}", f"{values['lr']:g}")
    return _recipe_words([values["epochs"], values["batch_size"], *rates], schedule)


def _same(paper: str, ours: str) -> str:
    return "the same" if paper == ours else ours


def _exponent(value: float) -> str:
    return f"{value:.0e}".replace("e-0", "e-")


def _values(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _default(settings: type[Any], name: str) -> Any:
    """The default of a dataclass's field, or what it is if it is not given."""
    (field,) = (f for f in fields(settings) if f.name == name)
    return field.metadata.get("auto", field.default)


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


def _grid(training: Training) -> str:
    sizes = {name: len(values) for name, values in training.grid().items() if f"{name}=" not in training.method}
    names = {"lambda_0": "λ0", "eta_1": "η1", "eta_2": "η2"}
    product = " x ".join(f"{size} {names[name]}" for name, size in sizes.items())
    total = training.trials(PAPER_SCALE)
    return f"{product} = {total} runs" if len(sizes) > 1 else f"{total} runs"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
