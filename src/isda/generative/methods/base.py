"""What a method of generation is: two players, and what each minimises in its turn."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from isda.engine.method import Outcome
from isda.engine.named_method import NamedMethod
from isda.errors import of_type
from isda.generative.batches import Batch, Drawn
from isda.generative.config import Config
from isda.generative.recipes import DCGAN, Optimiser
from isda.networks.generative import Discriminator, ImageGenerator, create_generator

__all__ = ["GenerativeMethod", "Players", "Turn", "shape_of", "told_apart"]


class Players(nn.Module):
    """A generator and its discriminator.

    Args:
        generator: makes images of classes.
        discriminator: says what it sees in images of classes, see `isda.networks.generative.Discriminator`.
    """

    def __init__(self, generator: ImageGenerator, discriminator: nn.Module) -> None:
        super().__init__()
        self.generator, self.discriminator = generator, discriminator


class Turn(NamedTuple):
    """What one player learns from."""

    drawn: Drawn
    """What generated images are made from."""
    real: Batch | None
    """Real images in the discriminator's turn; None in the generator's."""


class GenerativeMethod(NamedMethod):
    """A method of `isda generate train`, by its name on the command line; a subclass says what each player minimises.

    A subclass is made with ``(options, network, config)``; what must survive a resume goes into buffers and parameters
    of the players. Parameters of its own are not trained.
    """

    network: ClassVar[str] = "dcgan"
    """Its generator, see `isda.networks.generative.create_generator`."""
    balanced: ClassVar[bool] = False
    """Whether every batch has equally many images of each class."""
    codes: ClassVar[int] = 0
    """Dimensions of the generator's codes."""
    discriminator_steps: int = 1
    """Steps of the discriminator for one of the generator."""

    def __init__(self, options: Any, network: Any, config: Config) -> None:
        super().__init__()
        self.options = options

    @classmethod
    def optimiser(cls, options: dict[str, Any]) -> Optimiser:
        """What its publication trains with, given the method's options."""
        return DCGAN

    @classmethod
    def make_generator(cls, config: Config) -> ImageGenerator:
        """The generator of a configuration, with random weights."""
        return create_generator(config.network, len(config.classes), **config.network_options)

    @classmethod
    def make_discriminator(cls, config: Config) -> nn.Module:
        """The discriminator of a configuration, with random weights."""
        return Discriminator(**shape_of(config), **cls.told_of_discriminator())

    @classmethod
    def told_of_discriminator(cls) -> dict[str, Any]:
        """What `Discriminator` reads and says beside scores."""
        return {}

    @abstractmethod
    def discriminator_terms(self, network: nn.Module, real: Batch, generated: Batch, drawn: Drawn) -> Outcome:
        """What the discriminator minimises; generated images carry no gradient to the generator.

        The outputs are what is recorded: (N,) tensors by name, averaged over the images of an epoch.
        """

    @abstractmethod
    def generator_terms(self, network: nn.Module, generated: Batch, drawn: Drawn) -> dict[str, Tensor]:
        """What the generator minimises, through the discriminator ``network``."""

    def after_discriminator(self, network: nn.Module) -> None:
        """After each optimiser step of the discriminator."""

    def forward(self, network: nn.Module, batch: Turn) -> Outcome:
        """The terms of the player whose turn it is."""
        network = of_type(network, Players)
        drawn = batch.drawn
        if batch.real is None:
            generated = Batch(network.generator(drawn.latent, drawn.labels), drawn.labels)
            return Outcome(self.generator_terms(network.discriminator, generated, drawn), {})
        with torch.no_grad():
            generated = Batch(network.generator(drawn.latent, drawn.labels), drawn.labels)
        return self.discriminator_terms(network.discriminator, batch.real, generated, drawn)


def told_apart(real: Tensor, generated: Tensor) -> Tensor:
    """(N,) percent of a pair of real and generated image that scores put on the right side of zero.

    Example:
        >>> told_apart(torch.tensor([1.0, -1.0]), torch.tensor([-2.0, -2.0]))
        tensor([100.,  50.])
    """
    return 50 * ((real > 0).to(real.dtype) + (generated < 0).to(real.dtype)).detach()


def shape_of(config: Config) -> dict[str, Any]:
    """What a discriminator must know of the images."""
    options = config.network_options
    told = {name: options[name] for name in ("channels", "size", "width")}
    return {"num_classes": len(config.classes)} | told
