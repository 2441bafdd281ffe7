"""DCGAN generators and discriminators for 8x8, 28x28 and 32x32 pixels: one network for all classes, or one per class.

Radford et al., 2016. Several networks of one shape are one network with grouped convolutions. Group normalisation (Wu
and He, 2018) replaces batch normalisation, so that an image does not depend on its batch or the number of processes.

>>> network = create_generator("dcgan", num_classes=10, channels=1, size=8, width=0.25)
>>> network(network.draw(3, torch.Generator().manual_seed(0)), torch.tensor([0, 1, 9])).shape
torch.Size([3, 1, 8, 8])
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from isda.lab.choices import check_choice, positive_integer
from isda.lab.devices import send
from isda.lab.networks.network import scaled_channels

NOISE_DIM = 100
"""Dimensions of the noise, as in the paper."""
SIZES = {8: 2, 28: 2, 32: 3}
"""Number of halvings by the side of an image in pixels: down to 2x2, 7x7 and 4x4."""
BASE_CHANNELS = 64
"""Channels of the stage next to the image; they double with every halving."""
NORM_GROUPS = 4
LEAKY_SLOPE = 0.2
PER_CLASS = {"dcgan": False, "dcgan-per-class": True}
"""Names of generators, and whether they have one network for each class."""


def stage_channels(size: int, width: float) -> list[int]:
    """The channels of each stage, from the one next to the image to the smallest."""
    if size not in SIZES:
        raise ValueError(f"size must be one of {', '.join(map(str, SIZES))} pixels, got {size!r}")
    return [scaled_channels(BASE_CHANNELS << stage, width) for stage in range(SIZES[size])]


class GeneratorBody(nn.Module):
    """Latent vectors to images in [-1, 1]: a projection, then transposed convolutions that double the side.

    ``inputs`` is the length of the latent vector of each network, ``groups`` the number of networks in parallel.

    Example:
        >>> GeneratorBody(100, 3, 32, width=0.25, groups=10)(torch.zeros(2, 1000)).shape
        torch.Size([2, 30, 32, 32])
    """

    def __init__(self, inputs: int, channels: int, size: int, width: float = 1.0, groups: int = 1) -> None:
        super().__init__()
        stages = stage_channels(size, width)[::-1]
        self.side = size >> len(stages)
        self.project = nn.Conv2d(groups * inputs, groups * stages[0] * self.side**2, 1, bias=False, groups=groups)
        layers: list[nn.Module] = []
        for number, (before, after) in enumerate(pairwise([*stages, channels]), start=1):
            last = number == len(stages)
            doubled = nn.ConvTranspose2d(groups * before, groups * after, 4, 2, 1, bias=last, groups=groups)
            layers += [_norm(before, groups), nn.ReLU(), doubled]
        self.layers = nn.Sequential(*layers, nn.Tanh())
        _initialise(self)

    def forward(self, latent: Tensor) -> Tensor:
        """(N, groups x channels, size, size) from (N, groups x inputs)."""
        maps = self.project(latent[:, :, None, None]).view(len(latent), -1, self.side, self.side)
        images: Tensor = self.layers(maps)
        return images


class DiscriminatorBody(nn.Module):
    """Images to features: convolutions that halve the side. ``groups`` is the number of networks in parallel.

    Example:
        >>> body = DiscriminatorBody(1, 28, width=0.25)
        >>> body(torch.zeros(2, 1, 28, 28)).shape, body.feature_dim
        (torch.Size([2, 1568]), 1568)
    """

    def __init__(self, channels: int, size: int, width: float = 1.0, groups: int = 1) -> None:
        super().__init__()
        stages = stage_channels(size, width)
        first = nn.Conv2d(groups * channels, groups * stages[0], 4, 2, 1, groups=groups)
        layers: list[nn.Module] = [first, nn.LeakyReLU(LEAKY_SLOPE)]
        for before, after in pairwise(stages):
            halved = nn.Conv2d(groups * before, groups * after, 4, 2, 1, bias=False, groups=groups)
            layers += [halved, _norm(after, groups), nn.LeakyReLU(LEAKY_SLOPE)]
        self.layers = nn.Sequential(*layers)
        self.feature_dim = stages[-1] * (size >> len(stages)) ** 2
        _initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        """(N, groups x feature_dim) from (N, groups x channels, size, size)."""
        features: Tensor = self.layers(images)
        return features.flatten(1)


def _norm(channels: int, groups: int) -> nn.GroupNorm:
    parts = NORM_GROUPS if channels % NORM_GROUPS == 0 else 1
    return nn.GroupNorm(groups * parts, groups * channels)


def _initialise(body: nn.Module) -> None:
    """Weights from a normal distribution with standard deviation 0.02, as in DCGAN."""
    for module in body.modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


class ClassTable:
    """Arranges rows by class in a table (M, K), where M is the number of rows of the most frequent class.

    Labels are on the CPU, so that M is known without a device synchronisation.

    Example:
        >>> table = ClassTable(torch.tensor([1, 1, 0]), 2)
        >>> table.scatter(torch.tensor([5.0, 6.0, 7.0]))
        tensor([[7., 5.],
                [0., 6.]])
        >>> table.gather(table.scatter(torch.tensor([5.0, 6.0, 7.0])))
        tensor([5., 6., 7.])
    """

    def __init__(self, labels: Tensor, num_classes: int) -> None:
        if not labels.is_cpu:
            raise ValueError(f"labels must be on the CPU, got them on {labels.device}")
        counts = labels.bincount(minlength=num_classes)
        if len(counts) > num_classes:
            raise ValueError(f"labels must be below {num_classes}, got {int(labels.max())}")
        order = labels.argsort(stable=True)
        row = torch.empty_like(labels)
        row[order] = torch.arange(len(labels), device="cpu") - (counts.cumsum(0) - counts)[labels[order]]
        self.shape = int(counts.max()), num_classes
        self.positions = row * num_classes + labels

    def scatter(self, rows: Tensor) -> Tensor:
        """The table (M, K, ...) of rows (N, ...), zero elsewhere."""
        table = rows.new_zeros(self.shape[0] * self.shape[1], *rows.shape[1:])
        return table.index_copy(0, send(self.positions, rows.device), rows).unflatten(0, self.shape)

    def gather(self, table: Tensor) -> Tensor:
        """The rows (N, ...) of a table (M, K, ...)."""
        return table.flatten(0, 1).index_select(0, send(self.positions, table.device))


def one_hot(labels: Tensor, num_classes: int, like: Tensor) -> Tensor:
    """(N, K) one-hot vectors of labels on the CPU, with the dtype and device of ``like``."""
    return send((labels[:, None] == torch.arange(num_classes, device="cpu")).to(like.dtype), like.device)


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


def generator_names() -> list[str]:
    """The names that `create_generator` accepts."""
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
    """Build a generator by name, one of `generator_names`, with random weights; see `ImageGenerator`."""
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
        self.score = nn.Conv2d(num_classes * self.body.feature_dim, num_classes, 1, groups=num_classes)

    def forward(self, images: Tensor, labels: Tensor) -> DiscriminatorOutput:
        """Scores of images (N, channels, size, size) by the critics of their classes (N,), these on the CPU."""
        table = ClassTable(labels, self.num_classes)
        features = self.body(table.scatter(images).flatten(1, 2))
        return DiscriminatorOutput(table.gather(self.score(features[:, :, None, None]).flatten(1)))


def from_pixels(images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Pixels x of uint8 images as x / 127.5 - 1."""
    return images.to(dtype).div(127.5).sub(1)


def to_pixels(images: Tensor) -> Tensor:
    """The nearest uint8 of (x + 1) * 127.5.

    Example:
        >>> to_pixels(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([  0, 128, 255], dtype=torch.uint8)
    """
    return images.float().add(1).mul(127.5).round().clamp(0, 255).to(torch.uint8)
