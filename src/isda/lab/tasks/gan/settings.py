"""Settings, stored configuration and recipes of GAN runs.

WGAN (Arjovsky et al., 2017): RMSprop at 5e-5, batches of 64 for each network (one per class), five steps of the critic
for one of the generator. With gradient penalty (Gulrajani et al., 2017): Adam at 1e-4 with betas 0 and 0.9. The others
as DCGAN (Radford et al., 2016): Adam at 2e-4 with betas 0.5 and 0.999. The number of steps of the generator, 40,000, is
ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from isda.lab.engine.config import RunConfig
from isda.lab.engine.settings import Auto, OptimiserSettings, Recipe, auto

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class GANSettings(OptimiserSettings):
    """Settings of a run; what is not given comes from the method's publication, or is what the help says."""

    data: Auto[str] = auto()
    """digits, fashion-mnist, cifar10, cifar100, svhn or an .npz file: images of 8x8, 28x28 or 32x32."""
    network: Auto[str] = auto()
    """Decided by the method: dcgan, or for wgan dcgan-per-class."""
    method: Auto[str] = auto("acgan")
    """wgan (one generator and critic per class), cgan, acgan or infogan; options follow a colon:
    wgan:penalty=10 has a gradient penalty instead of clipped weights. A class of your own: package.module.Class."""
    epochs: Auto[int] = auto()
    """Number of epochs."""
    evaluate_every: Auto[int] = auto()
    """Measure after every so many epochs, and after the last."""
    batch_size: Auto[int] = auto()
    """Real images per step, over all processes together, and as many generated ones."""
    lr: Auto[float] = auto()
    """Learning rate of generator and discriminator."""
    precision: Auto[Literal["float32", "float64", "bfloat16"]] = auto("float32")
    """bfloat16 (or bf16) is mixed precision (autocast)."""
    labels: int | None = None
    """Learn from this many images, equally many of each class, drawn with the seed."""
    held_out: Auto[int] = auto(0)
    """Hold out this many training images and measure on them instead of the test set."""
    width: float = 1.0
    """Factor on the channels of generator and discriminator."""
    noise: int = 100
    """Dimensions of the noise."""
    judge: str | None = None
    """Run folder of the classifier on whose features images are evaluated; one that is trained for this is kept in the
    folder judge of the run."""

    method_summaries: ClassVar[Mapping[str, str]] = {
        "wgan": "a Wasserstein generator and critic per class",
        "cgan": "conditional GAN: the discriminator scores pairs of an image and a class",
        "acgan": "GAN with an auxiliary classifier",
        "infogan": "InfoGAN with labels: the categorical code is the class",
    }

    precisions: ClassVar[tuple[str, ...]] = ("float32", "float64", "bfloat16")


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


def recipe_for(optimiser: PlayerOptimiser, steps_per_epoch: int, discriminator_steps: int = 1) -> Recipe:
    """The recipe in epochs of so many steps: as many as come nearest to 40,000 steps of the generator.

    Args:
        optimiser: of both players.
        steps_per_epoch: of the discriminator.
        discriminator_steps: for one of the generator.

    Example:
        >>> recipe_for(DCGAN, 50_000 // 64)["epochs"], recipe_for(CLIPPED, 50_000 // 640, 5)["epochs"]
        (51, 2564)
    """
    return Recipe(
        {
            "epochs": max(1, round(STEPS * discriminator_steps / steps_per_epoch)),
            "lr": optimiser.lr,
            "optimiser": optimiser.name,
            "betas": optimiser.betas,
            "average_last": 1,
        }
    )


@dataclass(frozen=True, kw_only=True)
class GANConfig(GANSettings, RunConfig):
    """The resolved settings of a run, and facts of its data set."""

    optimiser: str
    """Of both players: "adam" or "rmsprop"."""
    betas: tuple[float, ...]
    """Adam's; empty for another optimiser."""
    codes: int
    """Dimensions of the generator's codes."""
    classes: tuple[str, ...]
    channels: int
    image_size: tuple[int, int]
    train_images: int
    test_images: int
    judge_sha256: str = ""
    """Of the judge's weights."""
    data_digest: str = ""
    """Of labels, sizes and class names: a run is resumed only with the data that it was started with."""

    of_method: ClassVar[tuple[str, ...]] = ("network", "codes", "optimiser", "betas", "lr")
    change_messages: ClassVar[dict[str, str]] = {
        "data_digest": "the data set has changed since the run was started",
        "judge_sha256": "the judge has changed since the run was started",
    }

    @property
    def network_options(self) -> dict[str, Any]:
        """The arguments of `isda.lab.networks.generative.create_generator`."""
        return {name: getattr(self, name) for name in ("channels", "noise", "codes", "width")} | {
            "size": self.image_size[0]
        }

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        import torch

        return torch.float64 if self.precision == "float64" else torch.float32

    def describe(self) -> str:
        """One line about the run."""
        return (
            f"{self.method} on {self.data}, {self.network}, {self.train_images} images, {self.epochs} epochs "
            f"({self.scale} scale), seed {self.seed}"
        )
