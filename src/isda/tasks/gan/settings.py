"""Settings, stored configuration and recipes of GAN runs.

WGAN (Arjovsky et al., 2017): RMSprop at 5e-5, batches of 64, five steps of the critic for one of the generator. With
gradient penalty (Gulrajani et al., 2017): Adam at 1e-4 with betas 0 and 0.9. The others as DCGAN (Radford et al.,
2016): Adam at 2e-4 with betas 0.5 and 0.999. The number of steps, 40,000, is ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from isda.engine.config import RunConfig
from isda.engine.settings import Recipe, RunSettings


@dataclass(frozen=True, kw_only=True)
class GANSettings(RunSettings):
    """Settings of a run; what is left out comes from the method's publication, or is what the help says."""

    data: str | None = None
    """digits (if left out), fashion-mnist, cifar10, cifar100, svhn or an .npz file: images of 8x8, 28x28 or 32x32."""
    network: str | None = None
    """Decided by the method: dcgan, or for wgan dcgan-per-class."""
    method: str | None = None
    """wgan (one generator and critic per class), cgan, acgan (if left out) or infogan; options follow a colon:
    wgan:penalty=10 has a gradient penalty instead of clipped weights. A class of your own: package.module.Class."""
    epochs: int | None = None
    """Number of epochs; by default as many as come nearest to 40,000 steps, times the scale."""
    evaluate_every: int | None = None
    """Measure after every so many epochs, and after the last; 20 times in all if left out."""
    batch_size: int | None = None
    """Real images per step, over all processes together, and as many generated ones; about 64 if left out."""
    lr: float | None = None
    """Learning rate of generator and discriminator; that of the method's publication if left out."""
    labels: int | None = None
    """Learn from this many images, equally many of each class, drawn with the seed; all of them by default."""
    held_out: int | None = None
    """Hold out this many training images and measure on them instead of the test set."""
    width: float | None = None
    """Factor on the channels of generator and discriminator; 1 if left out."""
    noise: int | None = None
    """Dimensions of the noise; 100 if left out."""
    judge: str | None = None
    """Run folder of the classifier on whose features images are judged; by default one is trained on the same data and
    kept in the folder judge of the run."""


# How the publications train their networks; the paper says which methods, the noise and the share, and no more.
#
# WGAN (Arjovsky et al., 2017): RMSprop at 5e-5, batches of 64, five steps of the critic for one of the generator. With
# gradient penalty (Gulrajani et al., 2017): Adam at 1e-4 with betas 0 and 0.9. The others as DCGAN (Radford et al.,
# 2016): Adam at 2e-4 with betas 0.5 and 0.999. How long, 40,000 steps, is ours.

STEPS = 40_000
BATCH_SIZE = 64
EVALUATIONS = 20


@dataclass(frozen=True)
class PlayerOptimiser:
    """What both players are trained with."""

    name: str
    lr: float
    betas: tuple[float, ...] = ()


DCGAN = PlayerOptimiser("adam", 2e-4, (0.5, 0.999))
CLIPPED = PlayerOptimiser("rmsprop", 5e-5)
PENALISED = PlayerOptimiser("adam", 1e-4, (0.0, 0.9))


def recipe_for(optimiser: PlayerOptimiser, steps_per_epoch: int) -> Recipe:
    """The recipe in epochs of so many steps: as many as come nearest to 40,000 steps.

    Example:
        >>> recipe_for(DCGAN, 50_000 // 64).epochs
        51
    """
    return Recipe(
        epochs=max(1, round(STEPS / steps_per_epoch)),
        batch_size=BATCH_SIZE,
        weight_decay=0.0,
        lr=optimiser.lr,
        average_last=1,
    )


@dataclass(frozen=True, kw_only=True)
class GANConfig(RunConfig):
    """The settings of a run with every default filled in, and what the run needs to know of its data set."""

    batch_size: int
    optimiser: str
    """Of both players: "adam" or "rmsprop"."""
    betas: tuple[float, ...]
    """Adam's; empty for another optimiser."""
    lr: float
    weight_decay: float
    precision: str = "float32"
    ema: float | None = None
    labels: int | None
    held_out: int
    classes: tuple[str, ...]
    channels: int
    image_size: tuple[int, int] | None
    train_images: int
    test_images: int
    judge: str = ""
    """The run folder of the classifier that judges; empty for one of its own."""
    judge_sha256: str = ""
    """Of its weights."""
    data_digest: str = ""
    """Of labels, sizes and class names: a run goes on with the data that it was started with."""
    network_options: dict[str, Any] = field(default_factory=dict)

    of_method: ClassVar[tuple[str, ...]] = ("network", "network_options", "optimiser", "betas", "lr")
    told: ClassVar[dict[str, str]] = {
        "data_digest": "the data set has changed since the run was started",
        "judge_sha256": "the judge has changed since the run was started",
    }

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return torch.float64 if self.precision == "float64" else torch.float32

    def describe(self) -> str:
        """One line about the run."""
        return (
            f"{self.method} on {self.data}, {self.network}, {self.train_images} images, {self.epochs} epochs "
            f"({self.scale} scale), seed {self.seed}"
        )
