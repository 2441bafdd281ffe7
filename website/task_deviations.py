"""Rows of docs/deviations.md on segmentation, detection and generators, figures, and counts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from classifier_deviations import PAPER_SCALE, grid_text
from deviation_words import Item, default, exponent, values_text
from isda._utils.errors import expect_type
from isda.lab import networks
from isda.lab.analysis.inversion.page import MOST_OBSERVED, InversionOptions
from isda.lab.analysis.inversion.study import NEAREST
from isda.lab.analysis.maps import MapOptions
from isda.lab.analysis.studies import ExplicitStudy
from isda.lab.analysis.tightness import TightnessOptions
from isda.lab.data.catalogue import CATALOGUE
from isda.lab.engine.settings import Recipe
from isda.lab.networks.cifar import ShakeBlock, ShiftedShortcut
from isda.lab.networks.cost import count_parameters
from isda.lab.reproduce.classifier_trainings import CHECKPOINTS, semi_supervised
from isda.lab.reproduce.costs import CIFAR_NETWORKS
from isda.lab.reproduce.dense_trainings import CITYSCAPES_IMAGES
from isda.lab.reproduce.figures import (
    IMAGENET_STRENGTH,
    MAPPED_IMAGES,
    STRENGTHS,
    UNCERTAINTY_WEIGHTS,
    Figure5,
    Figure6,
    Figure7,
    Figure10,
    Figure13,
    Figure14,
)
from isda.lab.reproduce.printed_tables import paper_table
from isda.lab.reproduce.tables import Table6, Table7, Table8
from isda.lab.tasks.classification.generated import GENERATED_SHARE
from isda.lab.tasks.detection.settings import RECIPE as DETECTION_RECIPE
from isda.lab.tasks.gan.methods import find_method
from isda.lab.tasks.gan.settings import BATCH_SIZE as GAN_BATCH
from isda.lab.tasks.gan.settings import STEPS as GAN_STEPS
from isda.lab.tasks.gan.settings import GANSettings
from isda.lab.tasks.segmentation.evaluation import SCALES as EVALUATED_SCALES
from isda.lab.tasks.segmentation.settings import BATCH_SIZE as SEGMENTATION_BATCH
from isda.lab.tasks.segmentation.settings import STEPS as SEGMENTATION_STEPS
from isda.lab.tasks.segmentation.settings import SegmentationSettings
from isda.lab.tasks.segmentation.settings import recipe_for as segmentation_recipe

__all__ = ["count_items", "experiment_items", "figure_items", "generator_items", "task_items"]

ANY_BIGGAN = "package.module.Class:WEIGHTS"


def task_items() -> Iterable[Item]:
    """Segmentation and detection."""
    recipe = segmentation_recipe(CITYSCAPES_IMAGES // SEGMENTATION_BATCH)
    yield Item(
        "Segmentation",
        '"the standard hyper-parameters" of a public toolbox',
        f"the authors' code: crops of {default(SegmentationSettings, 'crop')}, batches of {SEGMENTATION_BATCH}, "
        f"{SEGMENTATION_STEPS:,} steps, lr {recipe['lr']:g} falling to 0 as (1 - t/T)^0.9, weight decay "
        f"{exponent(recipe['weight_decay'])}",
        "`isda segment train --crop`, `--epochs`, `--lr`, ...",
    )
    yield Item(
        "λ0 on Cityscapes",
        "not said",
        f"{recipe.method_defaults['isda']['lambda_0']:g}, the default of the authors' code, not searched",
        "`--lambda-0`; `isda segment tune`",
    )
    yield Item(
        "Random scales of crops",
        "not said; 0.7, 0.8, ... 2.1 in the toolbox",
        f"{default(SegmentationSettings, 'smallest_scale'):g} to {default(SegmentationSettings, 'largest_scale'):g}",
        "`--smallest-scale`, `--largest-scale`",
    )
    ((windows, synchronised),) = {(one.settings.window, one.settings.sync_batch_norm) for one in Table7().trainings()}
    yield Item(
        "Sliding windows (Table 7)",
        "not said; in the toolbox windows of the size of crops, a third of it overlapping, whose logits are averaged",
        f"`isda reproduce table-7`: the same, windows of {windows}; `isda segment train`: "
        f"{_window(default(SegmentationSettings, 'window'))}",
        f"`isda segment train --window {windows}`; `isda segment evaluate --window {windows}`",
    )
    yield Item(
        "Scales of evaluation (Table 7)",
        "0.75, 1, 1.25 and 1.5, and mirrored",
        f"{values_text(EVALUATED_SCALES)}, and mirrored",
        "`isda segment evaluate RUN --scales ... --flip`",
    )
    yield Item(
        "Batch normalisation of several processes (Table 7)",
        "not said; over all GPUs in the toolbox",
        f"`isda reproduce table-7`: {_over_all(synchronised)}; `isda segment train`: "
        f"{_over_all(default(SegmentationSettings, 'sync_batch_norm'))}",
        "`isda segment train --sync-batch-norm`",
    )
    yield Item(
        "Detectors",
        "MMDetection's default configuration",
        f"its 1x schedule in our implementation: {DETECTION_RECIPE['epochs']} epochs, batches of "
        f"{DETECTION_RECIPE['batch_size']}, lr {DETECTION_RECIPE['lr']:g}, times 0.1 after "
        f"{values_text(DETECTION_RECIPE['milestones'])}",
        "`isda detect train --epochs`, `--lr`, ...",
    )
    yield Item(
        "Backbones of detectors",
        "the ResNet-50s of Table 1",
        "those of the first seed; `Original` rows: torchvision's weights",
        "`isda detect train --backbone RUN`",
    )


def _window(window: str | None) -> str:
    return "whole images" if window is None else f"windows of {window}"


def _over_all(synchronised: bool) -> str:
    return "over all processes" if synchronised else "each process has its own"


def generator_items() -> Iterable[Item]:
    """GANs of Table 5 and of the figures."""
    wgan = find_method("wgan")
    options: dict[str, Any] = wgan.resolve("", Recipe({}))
    turns, optimiser = wgan.turns(options), wgan.optimiser(options)
    classes = expect_type(CATALOGUE["cifar10"].classes, int)
    yield Item(
        "WGAN",
        "the structure of its publication, a generator for each class of CIFAR-10; batches and lengths are not said",
        f"a generator and a critic for each class; {GAN_BATCH} images for each network in a step, as published "
        f"({GAN_BATCH * classes} in all), {turns} steps of the critics for one of the generators, weights clipped to "
        f"{default(wgan.Options, 'clip'):g}, {optimiser.name} at {exponent(optimiser.lr)}; {GAN_STEPS:,} steps of the "
        f"generators = {turns * GAN_STEPS:,} batches",
        "`isda generate train --method wgan --batch-size 60 --epochs 48`: batches of about a tenth of the size, a "
        "fifth of the steps; `wgan:penalty=10`: a gradient penalty instead of clipping",
    )
    yield Item(
        "CGAN, ACGAN, infoGAN",
        "one generator for all classes; infoGAN has two further inputs; batches and lengths are not said",
        f"the same; batches of {GAN_BATCH}, {GAN_STEPS:,} steps; infoGAN's categorical code is the class, which its Q "
        "also learns from real images",
        "`isda generate train --batch-size`, `--epochs`",
    )
    yield Item(
        "Networks of the GANs",
        "those of the publications",
        "DCGAN's for all four, with group instead of batch normalisation",
        "`isda generate train --method package.module.Class`: yours",
    )
    yield Item(
        "Noise, share of generated images",
        "100 standard normal dimensions; 1/6 of every batch, chosen on held-out images",
        f"{default(GANSettings, 'noise')}; 1/{1 / GENERATED_SHARE:g} of every batch, augmented like real images",
        "`isda generate train --noise`; `isda train --generated RUN --generated-share`",
    )


def experiment_items() -> Iterable[Item]:
    """Tables as wholes."""
    trainings = Table6().trainings()
    trials = sum(training.trials(PAPER_SCALE) for training in trainings)
    yield Item(
        "Runs of Table 6",
        "5 per cell, and those of the searches",
        f"{trials + PAPER_SCALE.seeds * len(trainings):,}: {PAPER_SCALE.seeds} of each of {len(trainings)} cells, and "
        f"{trials:,} on held-out labels",
        "`isda reproduce list --scale paper` counts them",
    )
    (ablated,) = {cell.training.trials(PAPER_SCALE) for cell in Table8().cells() if cell.base}
    yield Item(
        "λ0 in the ablation (Table 8)",
        "not said",
        f"chosen for each row on held-out images, from the values on CIFAR ({ablated} runs)",
        "`isda study ablation --methods isda:lambda_0=0.5`: one strength for all rows",
    )
    yield Item(
        "Results of other papers",
        'quoted ("reported in", "Original" of DeepLab-v3)',
        "shown, not reproduced",
    )


def figure_items() -> Iterable[Item]:
    """Figures in the paper's order."""
    yield Item(
        "Figure 5",
        "test errors over the training of Wide-ResNet-28-10 on CIFAR-100",
        f"of {len(Figure5().trainings())} trainings of Tables 2 and 4, after every epoch, means over "
        f"{PAPER_SCALE.seeds} seeds",
        "`--seeds 1`: one curve each",
    )
    yield from _inversion_items()
    yield from _imagenet_items()
    yield Item(
        "Figure 8",
        "t-SNE maps of CIFAR-10; images and perplexity are not said",
        f"{MAPPED_IMAGES:,} test images, perplexity {default(MapOptions, 'perplexity'):g}; a network with constant or "
        "non-finite features gets a panel that says so",
        "`isda map RUN RUN --images`, `--perplexity`",
    )
    yield Item(
        "Figure 9",
        "bound and expected loss over the training of ResNet-110, the latter by 1,000 draws",
        f"at {CHECKPOINTS} checkpoints of the first seed of Table 2, {default(TightnessOptions, 'images')} training "
        f"images, {default(TightnessOptions, 'draws'):,} draws; the tilted bound as a third line",
        "`isda tightness RUN --images`, `--draws`",
    )
    (learned,) = {one.trials(PAPER_SCALE) for one in Figure10().trainings() if one.search}
    yield Item(
        "Figure 10",
        "explicit augmentation with M draws (1, 2, 5 are named), estimated and learned covariances; λ0 is not said; "
        "the weight of the uncertainty loss is tuned on held-out images",
        f"M = {values_text(ExplicitStudy.values)}; λ0 chosen once for each augmentation, on held-out images for ISDA; "
        f"the weight chosen for each cell with learned covariances, from {_search_values(UNCERTAINTY_WEIGHTS[0])} "
        f"({learned} runs)",
        "`isda study explicit --values 1 2 5 10`; `explicit:uncertainty_weight=...`",
    )
    plain, tuned = (semi_supervised("cifar10", method, 4000) for method in ("vat", "vat+isda:lambda_0=0.5"))
    yield Item(
        "Figure 11",
        "λ0 up to 10; which values is not said, nor the weights of the semi-supervised panel",
        f"λ0 = {values_text(STRENGTHS)}; in the semi-supervised panel held-out labels choose the other weights for "
        f"each λ0: {grid_text(tuned)}; for VAT alone {grid_text(plain)}",
        "`isda study sensitivity --values ...`; with `--methods vat+isda`: η1 = 1 and the published η2 at every λ0",
    )
    yield Item("Figures 1 to 4 and 12", "drawings", "not made")


def _search_values(word: str) -> str:
    return values_text([float(value) for value in word.partition("=")[2].split(",")])


def _inversion_items() -> Iterable[Item]:
    six, thirteen = Figure6(), Figure13()
    network, source = six.all_trainings()
    options = six.options(PAPER_SCALE)
    first, second = options.steps()
    yield Item(
        "Figures 6 and 13: networks",
        "ResNet-32, and a WGAN trained on CIFAR; whether ResNet-32 was trained with ISDA is not said",
        f"{network.settings.network} with ISDA of Table 2, {source.method} of Table 5, both of the first seed",
        "`isda visualize RUN --generator RUN`: any others",
    )
    rates = f"{first.lr:g} (step I) and {second.lr:g} (step II)" if first.lr and second.lr else "other rates"
    (same_steps,) = {(step.iterations, step.momentum, step.weight_decay, step.tolerance) for step in (first, second)}
    iterations, momentum, decay, tolerance = same_steps
    yield Item(
        "Figures 6 and 13: optimisation",
        "gradient descent of 10,000 iterations, rates 10 (step I) and 1 (step II), divided by 10 every 2,500, momentum "
        "0.9, weight decay 1e-4",
        f"scale paper: {iterations:,} iterations, rates {rates}, divided by 10 after every quarter, momentum "
        f"{momentum:g}, weight decay {exponent(decay)}, {'early stop' if tolerance else 'no early stop'}; smaller "
        "scales: fewer iterations, our rates, early stop. Captions say which",
        "`isda visualize` without `--lr`: our rates and an early stop; `--lr 10 1 --tolerance 0`: the paper's",
    )
    yield Item(
        "Figures 6 and 13: images",
        '"a single batch"; how many images and draws is not said',
        f"{six.images} and {thirteen.images} images, {six.augmented} draws of each",
        "`isda visualize --images`, `--augmented`",
    )
    yield Item(
        "Figures 6 and 13: η, strength, covariances",
        "not said; η = 5e-3 in the authors' script for ImageNet",
        f"η = {exponent(options.pixel_weight)}; the λ0 of the run; covariances of the trained network's features, of "
        f"at most {MOST_OBSERVED:,} training images",
        "`--pixel-weight`, `--strength`",
    )


def _imagenet_items() -> Iterable[Item]:
    without, with_biggan = Figure7(), Figure7().with_biggan(ANY_BIGGAN)
    (network,) = with_biggan.all_trainings()
    options: InversionOptions = with_biggan.options(PAPER_SCALE)
    yield Item(
        "Figures 7 and 14: data and generator",
        "ImageNet, BigGAN of BigGAN-PyTorch; in the authors' script BigGAN-deep-512 of pytorch-pretrained-biggan",
        f"without a BigGAN: {without.all_trainings()[0].settings.data}, as Figure 6. Its weights are not part of this "
        "package",
        f"`isda reproduce figure-7 figure-14 --biggan {ANY_BIGGAN}`: ImageNet and that BigGAN, of either interface "
        "([how](visualize.md#imagenet-and-biggan))",
    )
    yield Item(
        "Figures 7 and 14 with `--biggan`: network and strength",
        "not said; in the authors' script torchvision's ResNet-50 without ISDA, λ = 0.2",
        f"the {network.settings.network} with ISDA of Table 1; λ = {IMAGENET_STRENGTH:g}",
        "`isda visualize RUN --generator ... --strength`",
    )
    rates = "our rates" if options.lr is None else f"rates {values_text(options.lr)}"
    yield Item(
        "Figures 7 and 14 with `--biggan`: optimisation",
        "not said; in the authors' script 12,000 iterations of Adam at 100 (step I), 8,000 of gradient descent at 0.1 "
        "(step II)",
        f"gradient descent of at most {options.iterations:,} iterations in both steps, {rates}, early stop at "
        f"{options.tolerance:g} of the error",
        "`isda visualize --lr`, `--iterations`, `--tolerance`; Adam is not an option",
    )
    yield Item(
        "Figure 14",
        "the five training images nearest to augmented ones in pixels",
        f"the {NEAREST} nearest, searched among all training images, for {Figure14.augmented} augmented image of each "
        "original",
        "`isda visualize` writes them as nearest.png",
    )


def count_items() -> Iterable[Item]:
    """Parameters, multiply-adds and times."""
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
