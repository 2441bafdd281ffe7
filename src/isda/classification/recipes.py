"""How the paper trains each network family (its table of training configurations, and the ImageNet paragraph below it).

Recipes are data; what a run does with one is in `isda.engine`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from isda.engine.recipe import Recipe
from isda.networks.registry import IMAGENET, TIMM_PREFIX

__all__ = ["CIFAR_RECIPES", "IMAGENET_RECIPE", "RATES", "imagenet_strength", "recipe_for"]

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
