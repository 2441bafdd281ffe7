"""Class-conditional generators and discriminators: one network for all classes, or one per class."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from isda._utils.checks import positive_integer
from isda._utils.choices import check_choice
from isda._utils.devices import send
from isda.lab.networks.generative.layers import ClassTable, DiscriminatorBody, GeneratorBody

NOISE_DIM = 100
"""Dimensions of the noise, as in the paper."""


class ImageGenerator(nn.Module):
    """Maps latent vectors and classes to images in [-1, 1], by one network for all classes or one for each.

    The network for all classes reads the class as a one-hot vector beside the latent one. Networks for each class share
    nothing and run in one call.

    Args:
        num_classes: K.
        channels: of the images.
        size: their side in pixels.
        noise: dimensions drawn from a standard normal distribution.
        codes: further dimensions drawn uniformly from [-1, 1], the latent codes of infoGAN.
        width: factor on the numbers of channels.
        per_class: whether there is one network for each class.

    Example:
        >>> ImageGenerator(10, 1, 28, width=0.25)(torch.zeros(2, 100), torch.tensor([3, 4])).shape
        torch.Size([2, 1, 28, 28])
        >>> ImageGenerator(10, 3, 32, width=0.1, per_class=True)(torch.zeros(2, 100), torch.tensor([3, 4])).shape
        torch.Size([2, 3, 32, 32])
    """

    def __init__(
        self,
        num_classes: int,
        channels: int,
        size: int,
        noise: int = NOISE_DIM,
        codes: int = 0,
        width: float = 1.0,
        per_class: bool = False,
    ) -> None:
        super().__init__()
        self.num_classes = positive_integer("num_classes", num_classes)
        self.channels, self.noise = positive_integer("channels", channels), positive_integer("noise", noise)
        self.size, self.codes, self.per_class = size, codes, per_class
        inputs = noise + codes + (0 if per_class else num_classes)
        self.body = GeneratorBody(inputs, channels, size, width, groups=num_classes if per_class else 1)

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        """(N, channels, size, size) from latent vectors (N, noise + codes) and classes (N,), these on the CPU."""
        if self.per_class:
            table = ClassTable(labels, self.num_classes)
            grouped = self.body(table.scatter(latent).flatten(1))
            return table.gather(grouped.unflatten(1, (self.num_classes, self.channels)))
        images: Tensor = self.body(torch.cat([latent, one_hot(labels, self.num_classes, latent)], 1))
        return images

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """(count, noise + codes) latent vectors as float32 on the CPU, the same for every device."""
        noise = torch.randn(count, self.noise, generator=generator, device="cpu")
        return torch.cat([noise, torch.rand(count, self.codes, generator=generator, device="cpu") * 2 - 1], 1)


def one_hot(labels: Tensor, num_classes: int, like: Tensor) -> Tensor:
    """(N, K) one-hot vectors of labels on the CPU, with the dtype and device of ``like``.

    Example:
        >>> one_hot(torch.tensor([1]), 3, torch.zeros(1))
        tensor([[0., 1., 0.]])
    """
    return send((labels[:, None] == torch.arange(num_classes, device="cpu")).to(like.dtype), like.device)


PER_CLASS = {"dcgan": False, "dcgan-per-class": True}
"""Names of generators, and whether they have one network for each class."""


def generator_names() -> list[str]:
    """The names that `create_generator` accepts.

    Example:
        >>> generator_names()
        ['dcgan', 'dcgan-per-class']
    """
    return list(PER_CLASS)


def create_generator(
    name: str,
    num_classes: int,
    *,
    channels: int,
    size: int,
    noise: int = NOISE_DIM,
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
    per_class = PER_CLASS[check_choice("network", name, PER_CLASS)]
    return ImageGenerator(num_classes, channels, size, noise, codes, width, per_class)


class DiscriminatorOutput(NamedTuple):
    """Outputs of a discriminator for a batch."""

    scores: Tensor
    """(N,) logits of being real."""
    class_logits: Tensor | None = None
    """(N, K), if it predicts classes."""
    code_mean: Tensor | None = None
    """(N, codes) mean of the predicted Gaussian of the codes."""
    code_log_variance: Tensor | None = None
    """(N, codes) its log variance."""


class Discriminator(nn.Module):
    """One network for all classes.

    Args:
        num_classes: K.
        channels: of the images.
        size: their side in pixels.
        width: factor on the numbers of channels.
        reads_class: the class of each image is an input, as K further channels of zeros and ones (CGAN).
        names_class: it predicts the class (ACGAN, infoGAN).
        codes: number of codes that it predicts (infoGAN).

    Example:
        >>> discriminator = Discriminator(10, 1, 8, width=0.25, names_class=True, codes=2)
        >>> output = discriminator(torch.zeros(4, 1, 8, 8), torch.tensor([0, 1, 2, 3]))
        >>> output.scores.shape, output.class_logits.shape, output.code_mean.shape
        (torch.Size([4]), torch.Size([4, 10]), torch.Size([4, 2]))
    """

    def __init__(
        self,
        num_classes: int,
        channels: int,
        size: int,
        *,
        width: float = 1.0,
        reads_class: bool = False,
        names_class: bool = False,
        codes: int = 0,
    ) -> None:
        super().__init__()
        self.num_classes, self.reads_class = num_classes, reads_class
        self.body = DiscriminatorBody(channels + num_classes * reads_class, size, width)
        self.score = nn.Linear(self.body.feature_dim, 1)
        self.names = nn.Linear(self.body.feature_dim, num_classes) if names_class else None
        self.finds = nn.Linear(self.body.feature_dim, 2 * codes) if codes else None

    def forward(self, images: Tensor, labels: Tensor) -> DiscriminatorOutput:
        """Outputs for images (N, channels, size, size) in [-1, 1]; only CGAN uses their classes (N,), on the CPU."""
        if self.reads_class:
            planes = one_hot(labels, self.num_classes, images)[:, :, None, None]
            images = torch.cat([images, planes.expand(-1, -1, *images.shape[2:])], 1)
        features = self.body(images)
        class_logits = None if self.names is None else self.names(features)
        mean, log_variance = (None, None) if self.finds is None else self.finds(features).chunk(2, 1)
        return DiscriminatorOutput(self.score(features).squeeze(1), class_logits, mean, log_variance)


class CriticPerClass(nn.Module):
    """One critic for each class; they share nothing, and run in one call.

    Example:
        >>> CriticPerClass(10, 3, 32, width=0.1)(torch.zeros(4, 3, 32, 32), torch.tensor([0, 1, 2, 3])).scores.shape
        torch.Size([4])
    """

    def __init__(self, num_classes: int, channels: int, size: int, *, width: float = 1.0) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.body = DiscriminatorBody(channels, size, width, groups=num_classes)
        inputs = num_classes * self.body.feature_dim
        self.score = nn.Conv2d(inputs, num_classes, 1, groups=num_classes)

    def forward(self, images: Tensor, labels: Tensor) -> DiscriminatorOutput:
        """Scores of images (N, channels, size, size) by the critics of their classes (N,), these on the CPU."""
        table = ClassTable(labels, self.num_classes)
        features = self.body(table.scatter(images).flatten(1, 2))
        return DiscriminatorOutput(table.gather(self.score(features[:, :, None, None]).flatten(1)))
