"""How the paper trains each network family (its table of training configurations, and the ImageNet paragraph below it).

Recipes are data; what a run does with one is in `isda.train.loop`. Shorter versions of a recipe shrink everything that
is counted in epochs together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from isda.networks.registry import IMAGENET, TIMM_PREFIX

__all__ = ["CIFAR_RECIPES", "IMAGENET_RECIPE", "SCALES", "Recipe", "imagenet_strength", "recipe_for"]

SCALES = {"paper": 1.0, "small": 1 / 10, "smoke": 1 / 80}
"""The share of the paper's epochs that a scale trains for."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Stochastic gradient descent with Nesterov momentum, and the schedule of its learning rate."""

    epochs: int
    batch_size: int
    """Over all processes together."""
    weight_decay: float
    momentum: float = 0.9
    lr: float = 0.1
    """The initial learning rate."""
    schedule: str = "steps"
    """"steps": multiplied by lr_factor at each milestone; "cosine": lr * (1 + cos(pi t / T)) / 2 at step t of T."""
    milestones: tuple[int, ...] = ()
    """Epochs after which the learning rate falls."""
    lr_factor: float = 0.1
    average_last: int = 10
    """The reported error is the mean over this many last epochs."""
    covariance: str = "full"
    lambda_0: float = 0.5

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1:
            raise ValueError(f"epochs and batch_size must be at least 1, got {self.epochs} and {self.batch_size}")

    def lasting(self, epochs: int) -> Recipe:
        """The same recipe in another number of epochs: milestones and averaging window keep their proportion.

        Example:
            >>> short = CIFAR_RECIPES["resnet"].lasting(16)
            >>> short.milestones, short.average_last
            ((8, 12), 1)
        """
        if epochs < 1:
            raise ValueError(f"epochs must be at least 1, got {epochs}")
        factor = epochs / self.epochs
        return replace(
            self,
            epochs=epochs,
            milestones=tuple(max(1, round(milestone * factor)) for milestone in self.milestones),
            average_last=max(1, min(epochs, round(self.average_last * factor))),
        )

    def scaled(self, scale: str) -> Recipe:
        """The recipe at one of the SCALES."""
        return self.lasting(max(1, round(self.epochs * SCALES[scale])))


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
    epochs=300, batch_size=512, weight_decay=1e-4, lr=0.2, schedule="cosine", covariance="diagonal", lambda_0=7.5
)
"""All ImageNet networks; "the same L2 weight decay as CIFAR" is read as 1e-4, which most families have there."""


def imagenet_strength(network: str) -> float:
    """lambda_0 on ImageNet: 1 for DenseNets, 5 for ResNet-101, 7.5 for the other ResNets and ResNeXts."""
    if network.startswith("densenet"):
        return 1.0
    return 5.0 if network == "resnet-101" else 7.5


def recipe_for(network: str) -> Recipe:
    """The recipe of a network by its name; timm's models get the ImageNet recipe.

    Example:
        >>> recipe_for("wide-resnet-28-10").weight_decay
        0.0005
        >>> recipe_for("resnet-101").lambda_0
        5.0
    """
    if network in IMAGENET or network.startswith(TIMM_PREFIX):
        return replace(IMAGENET_RECIPE, lambda_0=imagenet_strength(network))
    for family, recipe in CIFAR_RECIPES.items():
        if network == family or network.startswith(f"{family}-"):
            return recipe
    raise ValueError(
        f"there is no recipe for the network {network!r}; there are recipes for {', '.join(CIFAR_RECIPES)}"
    )
