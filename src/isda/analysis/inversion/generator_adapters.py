"""Generators as the inversion takes them: latent vectors with normalised noise, and a class, to an image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from isda._utils.checks import positive_integer
from isda._utils.choices import check_choice
from isda._utils.devices import send
from isda.tasks.classification.trained import load_classifier
from isda.tasks.common.generators import TrainedGenerator, load_generator

CPU = torch.device("cpu")


@dataclass(frozen=True)
class LatentGenerator:
    """G: latent vectors (N, noise + codes) and classes (N,) to images (N, C, H, W) in [0, 1].

    Args:
        make: z-hat (N, noise + codes) and classes (N,) on the CPU to images in [-1, 1].
        noise: the first ``noise`` entries of a latent vector are standard normal noise, which is normalised.
        codes: the others, infoGAN's, lie in [-1, 1] and are passed unchanged.
        device: of latent vectors.
        dtype: of latent vectors.
    """

    make: Callable[[Tensor, Tensor], Tensor]
    noise: int
    codes: int = 0
    device: torch.device = CPU
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        if positive_integer("noise", self.noise) < 2:
            raise ValueError(f"noise must be at least 2 numbers to be normalised, got {self.noise}")

    def draw(self, count: int, rng: torch.Generator) -> Tensor:
        """(count, noise + codes) latent vectors to start from; drawn on the CPU, the same for every device."""
        noise = torch.randn(count, self.noise, generator=rng, device="cpu")
        codes = torch.rand(count, self.codes, generator=rng, device="cpu") * 2 - 1
        return send(torch.cat([noise, codes], 1), self.device, self.dtype)

    def bounded(self, latent: Tensor) -> Tensor:
        """Latent vectors with their codes clamped to [-1, 1]."""
        if not self.codes:
            return latent
        return torch.cat([latent[:, : self.noise], latent[:, self.noise :].clamp(-1, 1)], 1)

    def __call__(self, latent: Tensor, labels: Tensor) -> Tensor:
        """Images in [0, 1] of latent vectors (N, noise + codes) and classes (N,) on the CPU."""
        read = torch.cat([normalised_noise(latent[:, : self.noise]), latent[:, self.noise :]], 1)
        return (self.make(read, labels) + 1) / 2


def normalised_noise(noise: Tensor) -> Tensor:
    """z-hat = (z - mean(z)) / std(z) of each row (N, Z), eqs. 20 and 21; the standard deviation is that of a sample.

    Example:
        >>> normalised_noise(torch.tensor([[1.0, 2.0, 3.0], [5.0, 7.0, 9.0]]))
        tensor([[-1.,  0.,  1.],
                [-1.,  0.,  1.]])
    """
    std, mean = torch.std_mean(noise, 1, keepdim=True)
    return (noise - mean) / std


def generator_of_run(trained: TrainedGenerator, device: torch.device | str = "cpu") -> LatentGenerator:
    """The generator of a run of `isda generate train`, see `isda.tasks.common.generators.load_generator`."""
    network = trained.network.to(device)
    weight = next(network.parameters())
    return LatentGenerator(network, network.noise, network.codes, weight.device, weight.dtype)


def conditional(
    function: Callable[[Tensor, Tensor], Tensor],
    noise: int,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> LatentGenerator:
    """Any (z, class) to images in [-1, 1], both on ``device``.

    Example:
        >>> flat = conditional(lambda z, c: z[:, :1, None, None] * c[:, None, None, None], noise=4)
        >>> flat(torch.tensor([[1.0, 0.0, 0.0, 0.0]]), torch.tensor([0])).flatten()
        tensor([0.5000])
    """
    device = torch.device(device)
    return LatentGenerator(lambda z, labels: function(z, send(labels, device)), noise, device=device, dtype=dtype)


def unconditional(
    function: Callable[[Tensor], Tensor],
    noise: int,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> LatentGenerator:
    """Any (z) to images in [-1, 1], such as a generator without classes, or of a single class.

    Example:
        >>> unconditional(lambda z: z[:, :1, None, None], noise=4)(torch.eye(4)[:1], torch.tensor([7])).shape
        torch.Size([1, 1, 1, 1])
    """
    return LatentGenerator(lambda z, labels: function(z), noise, device=torch.device(device), dtype=dtype)


def biggan(network: nn.Module, noise: int | None = None) -> LatentGenerator:
    """A network that is called as BigGAN-PyTorch's generators are: ``network(z, network.shared(class))``.

    Args:
        network: on its device, with its weights; put into eval mode.
        noise: length of z; by default the network's ``dim_z``.
    """
    shared = getattr(network, "shared", None)
    length = getattr(network, "dim_z", None) if noise is None else noise
    if not callable(shared) or length is None:
        raise ValueError("network must have BigGAN's shared(class) and dim_z, or noise must be given")
    weight = next(network.parameters())
    network.eval()
    return conditional(lambda z, labels: network(z, shared(labels)), int(length), weight.device, weight.dtype)


def load_matching_generator(run: Path, generator: Path, classes: Sequence[str] = ()) -> TrainedGenerator:
    """The generator of a run of `isda generate train`, checked to be of the data of a classifier's run.

    Raises:
        ValueError: one of the runs is not finished or of another task, or the generator was trained on other data.
    """
    config = load_classifier(run).config
    for name in classes:
        check_choice("classes", name, config.classes)
    trained = load_generator(generator)
    message = f"generator must be trained on {config.data}, like the run, got {generator}"
    if trained.classes != config.classes:
        raise ValueError(f"{message}, which has {len(trained.classes)} classes of {trained.data}")
    size = (trained.network.channels, trained.network.size, trained.network.size)
    if size != (config.channels, *(config.image_size or ())):
        raise ValueError(f"{message}, whose images are {'x'.join(map(str, size))}")
    if trained.data_digest != config.data_digest:
        raise ValueError(f"{message}, which was trained on {trained.data}, or another version of it")
    return trained
