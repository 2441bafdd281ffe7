"""Networks that make images of a class: one for all classes, or one for each of them, side by side."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from isda.choices import check_choice
from isda.devices import send
from isda.networks.arguments import positive_integer
from isda.networks.generative.by_class import ClassTable
from isda.networks.generative.layers import GeneratorBody

__all__ = [
    "NOISE",
    "ConditionalGenerator",
    "GeneratorPerClass",
    "ImageGenerator",
    "create_generator",
    "generator_names",
    "one_hot",
]

NOISE = 100
"""Dimensions of the noise, as in the paper."""


class ImageGenerator(nn.Module, ABC):
    """Maps latent vectors and classes to images in [-1, 1].

    Args:
        num_classes: K.
        channels: of the images.
        size: their side in pixels.
        noise: dimensions drawn from a standard normal distribution.
        codes: further ones drawn uniformly from [-1, 1], which infoGAN gives a meaning.
    """

    def __init__(self, num_classes: int, channels: int, size: int, noise: int = NOISE, codes: int = 0) -> None:
        super().__init__()
        self.num_classes, self.channels = positive_integer("num_classes", num_classes), channels
        self.size, self.noise, self.codes = size, positive_integer("noise", noise), codes
        positive_integer("channels", channels)

    @abstractmethod
    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        """(N, channels, size, size) from latent vectors (N, noise + codes) and classes (N,), these on the CPU."""

    def draw(self, count: int, chance: torch.Generator) -> Tensor:
        """(count, noise + codes) latent vectors as float32 on the CPU, the same for every device."""
        noise = torch.randn(count, self.noise, generator=chance, device="cpu")
        return torch.cat([noise, torch.rand(count, self.codes, generator=chance, device="cpu") * 2 - 1], 1)


class ConditionalGenerator(ImageGenerator):
    """One network for all classes, which reads the class as a one-hot vector beside the latent one.

    Example:
        >>> ConditionalGenerator(10, 1, 28, width=0.25)(torch.zeros(2, 100), torch.tensor([3, 4])).shape
        torch.Size([2, 1, 28, 28])
    """

    def __init__(
        self, num_classes: int, channels: int, size: int, *, noise: int = NOISE, codes: int = 0, width: float = 1.0
    ) -> None:
        super().__init__(num_classes, channels, size, noise, codes)
        self.body = GeneratorBody(noise + codes + num_classes, channels, size, width)

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        """Images of the classes."""
        images: Tensor = self.body(torch.cat([latent, one_hot(labels, self.num_classes, latent)], 1))
        return images


class GeneratorPerClass(ImageGenerator):
    """One network for each class; they share nothing, and run in one call.

    Example:
        >>> GeneratorPerClass(10, 3, 32, width=0.1)(torch.zeros(2, 100), torch.tensor([3, 4])).shape
        torch.Size([2, 3, 32, 32])
    """

    def __init__(
        self, num_classes: int, channels: int, size: int, *, noise: int = NOISE, codes: int = 0, width: float = 1.0
    ) -> None:
        super().__init__(num_classes, channels, size, noise, codes)
        self.body = GeneratorBody(noise + codes, channels, size, width, groups=num_classes)

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        """Images of the classes, each by the network of its own."""
        table = ClassTable(labels, self.num_classes)
        images = self.body(table.laid_out(latent).flatten(1))
        return table.picked(images.unflatten(1, (self.num_classes, self.channels)))


def one_hot(labels: Tensor, num_classes: int, like: Tensor) -> Tensor:
    """(N, K) ones at the classes of labels that the host has, with the type and the device of ``like``.

    Example:
        >>> one_hot(torch.tensor([1]), 3, torch.zeros(1))
        tensor([[0., 1., 0.]])
    """
    return send((labels[:, None] == torch.arange(num_classes, device="cpu")).to(like.dtype), like.device)


GENERATORS: dict[str, type[ConditionalGenerator] | type[GeneratorPerClass]] = {
    "dcgan": ConditionalGenerator,
    "dcgan-per-class": GeneratorPerClass,
}


def generator_names() -> list[str]:
    """The names that `create_generator` knows.

    Example:
        >>> generator_names()
        ['dcgan', 'dcgan-per-class']
    """
    return list(GENERATORS)


def create_generator(
    name: str,
    num_classes: int,
    *,
    channels: int,
    size: int,
    noise: int = NOISE,
    codes: int = 0,
    width: float = 1.0,
) -> ImageGenerator:
    """Build a generator by name, with random weights.

    Args:
        name: one of `generator_names`.
        num_classes: K.
        channels: of the images.
        size: their side: 8, 28 or 32 pixels.
        noise: dimensions of the noise.
        codes: dimensions of infoGAN's codes.
        width: factor on the numbers of channels.

    Raises:
        ValueError: an unknown name, or an option out of range.
    """
    kind = GENERATORS[check_choice("network", name, GENERATORS)]
    return kind(num_classes, channels, size, noise=noise, codes=codes, width=width)
