"""Generators as the inversion takes them: latent vectors with normalised noise, and a class, to an image."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from isda.lab.choices import check_choice, expect_type, positive_integer
from isda.lab.devices import send
from isda.lab.engine.options import import_class
from isda.lab.networks.weight_files import read_weights
from isda.lab.tasks.classification.trained import load_classifier
from isda.lab.tasks.common.generators import TrainedGenerator, load_generator

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
    """The generator of a run of `isda generate train`, see `isda.lab.tasks.common.generators.load_generator`."""
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


def biggan(network: nn.Module, noise: int | None = None, truncation: float = 1.0) -> LatentGenerator:
    """A BigGAN, on its device and with its weights; put into eval mode.

    Two calls are known: ``network(z, network.shared(class))`` of BigGAN-PyTorch, which the paper names, and
    ``network(z, one-hot class, truncation)`` of Hugging Face's pytorch-pretrained-biggan, as in the authors' script.

    Args:
        network: with ``shared`` and ``dim_z``, or with ``config.z_dim`` and ``config.num_classes``.
        noise: length of z; by default the network's.
        truncation: standard deviation of z, and what a pytorch-pretrained-biggan is called with.
    """
    shared, config = getattr(network, "shared", None), getattr(network, "config", None)
    length = getattr(network, "dim_z", getattr(config, "z_dim", None)) if noise is None else noise
    classes: Any = getattr(config, "num_classes", None)
    if length is None or (classes is None and not callable(shared)):
        raise ValueError(
            "network must be a BigGAN: with shared(class) and dim_z, or with config.z_dim and config.num_classes"
        )
    weight = next(network.parameters())
    network.eval()

    def make(z: Tensor, labels: Tensor) -> Tensor:
        if callable(shared):
            return network(truncation * z, shared(labels))
        return network(truncation * z, one_hot(labels, classes).to(weight.dtype), truncation)

    return conditional(make, int(length), weight.device, weight.dtype)


def open_biggan(word: str) -> nn.Module:
    """The network of ``package.module.Class``, ``package.module.Class:FILE`` or ``package.module.Class:FOLDER``.

    The class is made without arguments and takes the weights of the file, if there is one. A folder is passed to its
    ``from_pretrained``, as of ``pytorch_pretrained_biggan.BigGAN:FOLDER`` (with config.json and pytorch_model.bin).

    Raises:
        ValueError: there is no such class or path, or the weights do not fit.
    """
    name, _, place = word.partition(":")
    kind: Any = import_class(name, nn.Module, "generator")
    path = Path(place)
    if place and not path.exists():
        raise ValueError(f"generator {name} must be followed by its file or folder of weights, got {place}")
    try:
        if place and path.is_dir():
            return expect_type(kind.from_pretrained(str(path)), nn.Module)
        network = expect_type(kind(), nn.Module)
        if place:
            network.load_state_dict(read_weights(path))
    except (TypeError, AttributeError, RuntimeError, OSError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ValueError(f"generator {word} could not be opened: {reason}") from error
    return network


class FoundGenerator(NamedTuple):
    """A generator of images of the classes of a run."""

    generator: LatentGenerator
    classes: tuple[str, ...]


def find_generator(
    run: Path, word: str | Path, classes: Sequence[str], truncation: float, device: torch.device | str
) -> FoundGenerator:
    """The generator for a classifier's run: the folder of a run of `isda generate train`, or a BigGAN.

    Args:
        run: folder of the classifier's run.
        word: the folder, or what `open_biggan` takes.
        classes: names that must be classes of the run.
        truncation: of a BigGAN.
        device: to compute on.

    Raises:
        ValueError: it cannot be opened, or does not make images of the classes of the run.
    """
    if Path(word).exists() or not re.fullmatch(r"[^\W\d]\w*(\.\w+)+(:.*)?", str(word)):
        if truncation != 1:
            raise ValueError(f"truncation is for a BigGAN, got {truncation} for the run {word}")
        trained = load_matching_generator(run, Path(word), classes)
        return FoundGenerator(generator_of_run(trained, device), trained.classes)
    known = load_classifier(run).config.classes
    for name in classes:
        check_choice("classes", name, known)
    network = open_biggan(str(word)).to(device)
    count = getattr(network, "n_classes", getattr(getattr(network, "config", None), "num_classes", None))
    if count not in (None, len(known)):
        raise ValueError(f"generator must make images of the {len(known)} classes of the run, {word} has {count}")
    return FoundGenerator(biggan(network, truncation=truncation), known)


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
