"""Settings, stored configuration and recipes of classification runs.

Recipes follow the paper's table of training configurations; those for fine-tuning are ours.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from isda.engine.settings import Recipe, RunSettings
from isda.engine.trainer import TrainingConfig
from isda.networks.registry import IMAGENET
from isda.networks.timm_models import TIMM_PREFIX
from isda.tasks.classification.pipelines import InputFormat


class HubOrFile(str):
    """Where weights come from: a file, or what the option stands for without one."""

    bare: ClassVar[str] = "hub"
    """The value of the option alone."""
    metavar: ClassVar[str] = "[FILE]"


@dataclass(frozen=True, kw_only=True)
class ClassificationSettings(RunSettings):
    """Settings of a run; what is left out comes from the paper's recipe for the network, or is what the help says."""

    data: str | None = None
    """digits (if left out), cifar10, cifar100, svhn, fashion-mnist, imagenet, a folder of classes, or an .npz file."""
    network: str | None = None
    """Network, see `isda networks`; by default fast-cnn, or resnet-50 on imagenet."""
    method: str | None = None
    """cross-entropy, isda (if left out), isda-tilted or a rival: large-margin, distribution-net, label-smoothing,
    disturb-label, focal, lq, confidence-penalty or center, the last six also with +isda (docs/rivals.md). For long
    tails: logit-adjustment, ldam, class-balanced, each also with +isda, risda, metasaug (docs/longtail.md). Options
    follow a colon: isda:lambda_0=1,covariance=diagonal. Semi-supervised: supervised (the floor), pi-model,
    temporal-ensembling, mean-teacher, vat or fixmatch, each also with +isda: mean-teacher+isda:eta_1=1,bound=tilted;
    `isda train --method vat --help` has their settings. A class of your own: package.module.Class:key=value
    (docs/extend.md)."""
    labels: int | None = None
    """Train on this many images, equally many of each class, drawn with the seed; all of them by default."""
    imbalance: float | None = None
    """Train on a long tail: class sizes fall exponentially, the first class has this many times as many images as the
    last (100 in most publications); drawn with the seed, --labels in all. What a run is judged by stays as it is."""
    held_out: int | None = None
    """Hold out this many training images and evaluate on them instead of the test set, to choose settings with."""
    lambda_0: float | None = None
    """ISDA's strength at the end of training."""
    augment: str | None = None
    """none, crop, crop-flip, translate, translate-flip, cutout, randaugment, autoaugment, imagenet or resized-crop."""
    pretrained: str | HubOrFile | None = None
    """Fine-tune: the network, timm:NAME or one for ImageNet, begins with the weights of a file (safetensors, or as
    torch.save writes them) or, where none is named, with those that timm has on the hub; its classifier is new, and
    images are brought to the size and normalisation that it knows (docs/finetuning.md)."""
    freeze: bool = False
    """Train the classifier only; all below it stays as it is pretrained, running figures of batch norm included."""
    input_size: int | None = None
    """Side of the images that a pretrained network sees, instead of the one it was trained with."""
    optimiser: Literal["sgd", "adamw"] | None = None
    """sgd, with Nesterov momentum, or adamw; the recipe's if left out. Another than the recipe's has a learning rate
    and a weight decay of its own."""
    warm_up: str | None = None
    """Let the learning rate rise in a line over so many epochs, 2 or 0.5, or steps: 100steps."""
    layer_decay: float | None = None
    """Each layer learns at this share of the rate of the one above it; the classifier has the whole rate."""
    width: float | None = None
    """Factor on the network's channel counts, where the family has it."""
    dropout: float | None = None
    """Dropout rate, where the family has it."""
    generated: str | None = None
    """Run folder of a generator of the same classes (`isda generate train`), whose images are part of every batch."""
    generated_share: float | None = None
    """Their share of a batch, 1/6 if left out as in the paper; the batch size stays the same."""
    network_options: dict[str, str] = field(default_factory=dict)
    """Further options of the network as KEY VALUE pairs."""


@dataclass(frozen=True, kw_only=True)
class ClassificationConfig(TrainingConfig):
    """The settings of a run with every default filled in, and what the run needs to know of its data set."""

    augment: str
    labels: int | None
    held_out: int
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    channels: int
    image_size: tuple[int, int] | None
    train_images: int
    test_images: int
    imbalance: float | None = None
    """How many times as many training images the first class has as the last; None where none was asked for."""
    class_counts: tuple[int, ...] = ()
    """Training images of each class; none where equally many of each are drawn."""
    generated: str = ""
    """The run folder of a generator, whose images are part of every batch; empty for none."""
    generated_per_batch: int = 0
    """How many of the batch_size images of a step."""
    generated_sha256: str = ""
    """Of the generator's weights."""
    data_digest: str = ""
    """Of labels, sizes and class names: a run goes on with the data that it was started with."""
    network_options: dict[str, Any] = field(default_factory=dict)
    pretrained: str = ""
    """The file of the weights that the network begins with, or "hub"; empty for random ones."""
    pretrained_sha256: str = ""
    """Of those tensors."""
    freeze: bool = False
    """Whether the classifier alone is trained."""
    input_size: int = 0
    """Side of the square that a pretrained network sees; 0: as the augmentation leaves the image."""
    input_resize: int = 0
    """The shorter side before that square is cut out, to evaluate."""
    first_pass: bool = False
    """Whether ISDA's statistics have seen every training image before the first step."""

    told: ClassVar[dict[str, str]] = {
        "data_digest": "the data set has changed since the run was started",
        "generated_sha256": "the generator has changed since the run was started",
        "pretrained_sha256": "the pretrained weights have changed since the run was started",
    }

    @property
    def seen(self) -> InputFormat | None:
        """How images are brought to what a pretrained network takes."""
        return InputFormat(self.channels, self.input_size, self.input_resize) if self.input_size else None

    def describe(self) -> str:
        """One line about the run."""
        return (
            f"{self.method} on {self.data}, {self.network}, {self.images_text}, {self.epochs} epochs "
            f"({self.scale} scale), seed {self.seed}"
        )

    @property
    def images_text(self) -> str:
        """What it learns from, in words."""
        generated = f", {self.generated_per_batch} of {self.batch_size} in a batch generated"
        tail = "" if self.imbalance is None else f" (imbalance {self.imbalance:g})"
        return f"{self.train_images} images{tail}{generated if self.generated_per_batch else ''}"


# Classes by how many training images they have: head, middle and tail of a long-tailed run.
#
# The borders are those of ImageNet-LT (Liu et al., CVPR 2019: many, medium and few shots): more than 100, 20 to 100,
# fewer than 20.

HEAD_ABOVE, TAIL_BELOW = 100, 20


def class_parts(counts: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """The classes of each part that has any.

    Example:
        >>> class_parts([500, 100, 20, 19, 0])
        {'head': (0,), 'middle': (1, 2), 'tail': (3, 4)}
    """
    parts: dict[str, tuple[int, ...]] = {"head": (), "middle": (), "tail": ()}
    for index, count in enumerate(counts):
        name = "head" if count > HEAD_ABOVE else "tail" if count < TAIL_BELOW else "middle"
        parts[name] += (index,)
    return {name: classes for name, classes in parts.items() if classes}


def measured_parts(config: ClassificationConfig) -> dict[str, tuple[int, ...]]:
    """The parts whose errors are measured: those of a run with an imbalance that was asked for."""
    return {} if config.imbalance is None else class_parts(config.class_counts)


def counts_for(config: ClassificationConfig, num_classes: int) -> list[int]:
    """Training images of each class, at least one, for losses that depend on them; all alike where that was drawn."""
    return [max(1, count) for count in config.class_counts or [1] * num_classes]


CIFAR_RECIPES = {
    "resnet": Recipe(epochs=160, batch_size=128, weight_decay=1e-4, milestones=(80, 120)),
    "se-resnet": Recipe(epochs=200, batch_size=128, weight_decay=1e-4, milestones=(80, 120, 160)),
    "wide-resnet": Recipe(epochs=240, batch_size=128, weight_decay=5e-4, milestones=(60, 120, 160, 200), lr_factor=0.2),
    "densenet-bc": Recipe(epochs=300, batch_size=64, weight_decay=1e-4, milestones=(150, 200, 250)),
    "resnext": Recipe(epochs=350, batch_size=128, weight_decay=5e-4, lr=0.05, milestones=(150, 225, 300)),
    "shake-shake": Recipe(epochs=1800, batch_size=64, weight_decay=1e-4, schedule="cosine"),
    # The semi-supervised experiments, appendix B.
    "cnn-13": Recipe(epochs=400, batch_size=128, weight_decay=1e-4, schedule="cosine"),
    # Ours: the network is not in the paper.
    "fast-cnn": Recipe(epochs=60, batch_size=128, weight_decay=5e-4, schedule="cosine", average_last=5),
}
"""By network family, for images of about 32x32 pixels."""

IMAGENET_RECIPE = Recipe(
    epochs=300,
    batch_size=512,
    weight_decay=1e-4,
    lr=0.2,
    schedule="cosine",
    covariance="diagonal",
    lambda_0=7.5,
    strengths=(1.0, 2.5, 5.0, 7.5, 10.0),
)
"""All ImageNet networks; "the same L2 weight decay as CIFAR" is read as 1e-4, which most families have there."""

RATES: dict[str, dict[str, Any]] = {
    "sgd": {"lr": 0.1, "weight_decay": 5e-4},
    "adamw": {"lr": 1e-3, "weight_decay": 0.05},
}
"""Ours: what an optimiser begins with where a recipe has been made for another one."""


def imagenet_strength(network: str) -> float:
    """lambda_0 on ImageNet: 1 for DenseNets, 5 for ResNet-101, 7.5 for the other ResNets and ResNeXts.

    Example:
        >>> [imagenet_strength(name) for name in ("densenet-265", "timm:densenet121", "timm:resnet101.a1_in1k")]
        [1.0, 1.0, 5.0]
    """
    name = network.removeprefix(TIMM_PREFIX)
    if name.startswith("densenet"):
        return 1.0
    return 5.0 if re.match(r"resnet-?101\b", name) else 7.5


def recipe_for(network: str, data: str = "") -> Recipe:
    """The recipe of a network by its name; timm's models get the ImageNet recipe.

    The data set matters for one number: DisturbLabel's rate is 0.1 for ResNet-110 on CIFAR-100, else 0.05.

    Example:
        >>> recipe_for("wide-resnet-28-10").weight_decay
        0.0005
        >>> recipe_for("resnet-101").lambda_0
        5.0
        >>> recipe_for("resnet-110", "cifar100").label_noise
        0.1
    """
    if network in IMAGENET or network.startswith(TIMM_PREFIX):
        return replace(IMAGENET_RECIPE, lambda_0=imagenet_strength(network))
    for family, recipe in CIFAR_RECIPES.items():
        if network == family or network.startswith(f"{family}-"):
            noisy = network == "resnet-110" and data.startswith("cifar100")
            return replace(recipe, label_noise=0.1) if noisy else recipe
    raise ValueError(
        f"there is no recipe for the network {network!r}; there are recipes for {', '.join(CIFAR_RECIPES)}"
    )


_COMMON = Recipe(
    epochs=20,
    batch_size=32,
    weight_decay=0.05,
    lr=2e-3,
    optimiser="adamw",
    schedule="cosine",
    warm_up=2.0,
    layer_decay=0.85,
    first_pass=True,
    average_last=1,
    covariance="diagonal",
    lambda_0=5.0,
    strengths=(0.5, 1.5, 5.0, 15.0),
)

ALL_LAYERS = {"adamw": _COMMON, "sgd": replace(_COMMON, optimiser="sgd", lr=0.02, weight_decay=1e-4)}
"""By optimiser, where the whole network is trained."""

CLASSIFIER_ONLY = {
    "adamw": replace(_COMMON, layer_decay=1.0),
    "sgd": replace(_COMMON, optimiser="sgd", lr=0.1, weight_decay=1e-4, layer_decay=1.0),
}
"""By optimiser, where all but the classifier is frozen."""


def fine_tuning_recipe(optimiser: str | None, freeze: bool) -> Recipe:
    """The recipe of an optimiser, AdamW unless one is named.

    Example:
        >>> fine_tuning_recipe(None, freeze=False).optimiser
        'adamw'
        >>> fine_tuning_recipe("sgd", freeze=True).lr
        0.1
    """
    return (CLASSIFIER_ONLY if freeze else ALL_LAYERS)[optimiser or "adamw"]
