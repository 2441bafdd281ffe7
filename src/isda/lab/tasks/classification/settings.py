"""Settings, stored configuration and recipes of classification runs.

Recipes follow the paper's table of training configurations; those for fine-tuning are ours.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from isda.lab.choices import check_choice
from isda.lab.engine.config import TrainingConfig
from isda.lab.engine.settings import (
    Auto,
    Recipe,
    TrainingSettings,
    auto,
    stored_in,
)
from isda.lab.methods.summaries import METHOD_SUMMARIES

if TYPE_CHECKING:
    from isda.lab.tasks.classification.pipelines import InputFormat


@dataclass(frozen=True, kw_only=True)
class ClassificationSettings(TrainingSettings):
    """Settings of a run; what is not given comes from the paper's recipe for the network, or is what the help says."""

    data: Auto[str] = auto()
    """digits (by default), cifar10, cifar100, svhn, fashion-mnist, imagenet, a folder of classes, or an .npz file."""
    network: Auto[str] = auto()
    """One of `isda networks`, or timm:NAME; by default fast-cnn, for imagenet resnet-50."""
    method: Auto[str] = auto()
    """One of `isda methods`, such as cross-entropy, isda, focal+isda or, with few labels, mean-teacher+isda; options
    follow a colon: isda:lambda_0=1,covariance=diagonal. `isda train --method vat --help` has the settings of
    semi-supervised methods. A class of your own: package.module.Class:key=value. isda by default."""
    labels: int | None = None
    """Train on this many images, equally many of each class, drawn with the seed; all by default."""
    held_out: Auto[int] = auto(0)
    """Hold out this many training images and evaluate on them instead of the test set, to choose settings with."""
    lambda_0: float | None = stored_in("method_options")
    """ISDA's strength at the end of training; the recipe's by default, see `isda methods`."""
    augment: Auto[str] = auto()
    """none, crop, crop-flip, translate, translate-flip, cutout, randaugment, autoaugment, imagenet or resized-crop.
    randaugment-3-5 has N = 3 operations at the level M = 5 (of 0 to 30); randaugment alone is randaugment-2-9.
    By default the data set's."""
    pretrained: str | None = None
    """Fine-tune: the network, timm:NAME or one for ImageNet, begins with the weights of a file (safetensors, or as
    torch.save writes them) or with those that timm has on the hub (hub); its classifier is new, and images are brought
    to the size and normalisation that it knows."""
    freeze: bool = False
    """Train the classifier only; all below it stays as it is pretrained, running figures of batch norm included."""
    input_size: Auto[int] = auto(0)
    """Side of the images that a pretrained network sees."""
    optimiser: Auto[Literal["sgd", "adamw"]] = auto("sgd")
    """sgd has Nesterov momentum. An optimiser other than the recipe's has a learning rate and a weight decay of its
    own."""
    layer_decay: Auto[float] = auto(1.0)
    """Each layer learns at this share of the rate of the one above it; the classifier has the whole rate."""
    width: float | None = stored_in("network_options")
    """Factor on the network's channel counts, where the family has it."""
    dropout: float | None = stored_in("network_options")
    """Dropout rate, where the family has it."""
    generated: str | None = None
    """Run folder of a generator of the same classes (`isda generate train`), whose images are part of every batch."""
    generated_share: float | None = stored_in("generated_per_batch")
    """Their share of a batch; the batch size stays the same."""
    network_options: dict[str, str] = field(default_factory=dict)
    """Further options of the network as KEY VALUE pairs."""

    method_summaries: ClassVar[Mapping[str, str]] = METHOD_SUMMARIES

    def check(self) -> None:
        """Raise a ValueError if a setting is out of range."""
        from isda.lab.engine.trainer import OPTIMISERS

        super().check()
        check_choice("optimiser", self.optimiser, OPTIMISERS)
        if not (math.isfinite(self.layer_decay) and 0 < self.layer_decay <= 1):
            raise ValueError(f"layer_decay must be above 0 and at most 1, got {self.layer_decay}")


@dataclass(frozen=True, kw_only=True)
class ClassificationConfig(ClassificationSettings, TrainingConfig):
    """The resolved settings of a run, and facts of its data set."""

    network_options: dict[str, Any] = field(default_factory=dict)
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    channels: int
    image_size: tuple[int, int] | None
    """None where images differ in size, or are brought to that of a pretrained network."""
    train_images: int
    test_images: int
    generated_per_batch: int = 0
    """How many of the batch_size images of a step a generator makes."""
    generated_sha256: str = ""
    """Of the generator's weights."""
    data_digest: str = ""
    """Of labels, sizes and class names: a run is resumed only with the data that it was started with."""
    pretrained_sha256: str = ""
    """Of the pretrained tensors."""
    input_resize: int = 0
    """The shorter side before the square of input_size is cut out, to evaluate."""
    first_pass: bool = False
    """Whether the statistics of methods have seen every training image before the first step."""

    change_messages: ClassVar[dict[str, str]] = {
        "data_digest": "the data set has changed since the run was started",
        "generated_sha256": "the generator has changed since the run was started",
        "pretrained_sha256": "the pretrained weights have changed since the run was started",
    }

    @property
    def seen(self) -> InputFormat | None:
        """How images are brought to what a pretrained network takes."""
        from isda.lab.tasks.classification.pipelines import InputFormat

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
        return f"{self.train_images} images{generated if self.generated_per_batch else ''}"


def _cifar_recipe(*, disturb_rate: float = 0.05, **values: Any) -> Recipe:
    """A recipe for small images, with the paper's options of methods on CIFAR."""
    return Recipe(
        {"batch_size": 128, "weight_decay": 1e-4, "lr": 0.1, "average_last": 10, **values},
        {
            "isda": {"lambda_0": 0.5, "covariance": "full", "bound": "jensen"},
            "disturb-label": {"rate": disturb_rate},
        },
        {"isda": {"lambda_0": (0.1, 0.25, 0.5, 0.75, 1.0)}},
    )


CIFAR_RECIPES = {
    "resnet": _cifar_recipe(epochs=160, milestones=(80, 120)),
    "se-resnet": _cifar_recipe(epochs=200, milestones=(80, 120, 160)),
    "wide-resnet": _cifar_recipe(epochs=240, weight_decay=5e-4, milestones=(60, 120, 160, 200), lr_factor=0.2),
    "densenet-bc": _cifar_recipe(epochs=300, batch_size=64, milestones=(150, 200, 250)),
    "resnext": _cifar_recipe(epochs=350, weight_decay=5e-4, lr=0.05, milestones=(150, 225, 300)),
    "shake-shake": _cifar_recipe(epochs=1800, batch_size=64, schedule="cosine"),
    # The semi-supervised experiments, appendix B.
    "cnn-13": _cifar_recipe(epochs=400, schedule="cosine"),
    # Ours: the network is not in the paper.
    "fast-cnn": _cifar_recipe(epochs=60, weight_decay=5e-4, schedule="cosine", average_last=5),
}
"""By network family, for images of about 32x32 pixels."""

IMAGENET_VALUES = {
    "epochs": 300,
    "batch_size": 512,
    "weight_decay": 1e-4,
    "lr": 0.2,
    "schedule": "cosine",
    "average_last": 10,
}
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
    from isda.lab.networks.timm_models import TIMM_PREFIX

    name = network.removeprefix(TIMM_PREFIX)
    if name.startswith("densenet"):
        return 1.0
    return 5.0 if re.match(r"resnet-?101\b", name) else 7.5


def recipe_for(network: str, data: str = "") -> Recipe:
    """The recipe of a network by its name; timm's models get the ImageNet recipe.

    The data set matters for one number: DisturbLabel's rate is 0.1 for ResNet-110 on CIFAR-100, else 0.05.

    Example:
        >>> recipe_for("wide-resnet-28-10")["weight_decay"]
        0.0005
        >>> recipe_for("resnet-101").method_defaults["isda"]["lambda_0"]
        5.0
        >>> recipe_for("resnet-110", "cifar100").method_defaults["disturb-label"]
        {'rate': 0.1}
    """
    from isda.lab.networks.registry import IMAGENET
    from isda.lab.networks.timm_models import TIMM_PREFIX

    if network in IMAGENET or network.startswith(TIMM_PREFIX):
        return Recipe(
            IMAGENET_VALUES,
            {
                "isda": {"lambda_0": imagenet_strength(network), "covariance": "diagonal", "bound": "jensen"},
                "disturb-label": {"rate": 0.05},
            },
            {"isda": {"lambda_0": (1.0, 2.5, 5.0, 7.5, 10.0)}},
        )
    if network == "resnet-110" and data.startswith("cifar100"):
        return _cifar_recipe(disturb_rate=0.1, **CIFAR_RECIPES["resnet"].values)
    for family, recipe in CIFAR_RECIPES.items():
        if network == family or network.startswith(f"{family}-"):
            return recipe
    raise ValueError(
        f"there is no recipe for the network {network!r}; there are recipes for {', '.join(CIFAR_RECIPES)}"
    )


FINE_TUNING_RECIPE = Recipe(
    {
        "epochs": 20,
        "batch_size": 32,
        "weight_decay": 0.05,
        "lr": 2e-3,
        "optimiser": "adamw",
        "schedule": "cosine",
        "warm_up": 2.0,
        "layer_decay": 0.85,
        "first_pass": True,
        "average_last": 1,
    },
    {
        "isda": {"lambda_0": 0.5, "covariance": "diagonal", "bound": "jensen"},
        "disturb-label": {"rate": 0.05},
    },
    {"isda": {"lambda_0": (0.25, 0.5, 1.0, 2.0, 5.0)}},
)


def fine_tuning_recipe(optimiser: str | None, freeze: bool) -> Recipe:
    """The recipe of an optimiser, AdamW unless one is named; ``freeze``: only the classifier is trained.

    Example:
        >>> fine_tuning_recipe(None, freeze=False)["optimiser"]
        'adamw'
        >>> fine_tuning_recipe("sgd", freeze=True)["lr"]
        0.1
    """
    recipe = FINE_TUNING_RECIPE | ({"layer_decay": 1.0} if freeze else {})
    if optimiser == "sgd":
        return recipe | {"optimiser": "sgd", "lr": 0.1 if freeze else 0.02, "weight_decay": 1e-4}
    return recipe
