"""Mixup, CutMix and manifold mixup.

Shares and permutations are drawn on the host from the generator that the trainer seeds.
"""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from isda._utils.devices import send
from isda.lab.engine.method import Outcome
from isda.lab.networks import Network
from isda.lab.tasks.classification.methods.base import CrossEntropy, CrossEntropyOptions
from isda.lab.tasks.classification.settings import ClassificationConfig
from isda.lab.tasks.common.data import ImageBatch


def draw_share(alpha: float) -> float:
    """The share lambda ~ Beta(alpha, alpha) of a sample that stays; 1 for alpha = 0.

    Example:
        >>> draw_share(0.0), 0 < draw_share(1.0) < 1
        (1.0, True)
    """
    if alpha == 0:
        return 1.0
    concentration = torch.tensor(alpha, dtype=torch.float64, device="cpu")
    return float(torch.distributions.Beta(concentration, concentration, validate_args=False).sample())


def mix(values: Tensor, partners: Tensor, share: float) -> Tensor:
    """Rows share * v_i + (1 - share) * v_partner(i) for the rows of values (N, ...) and partners (N,).

    Example:
        >>> mix(torch.tensor([0.0, 1.0]), torch.tensor([1, 0]), share=0.75)
        tensor([0.2500, 0.7500])
    """
    return share * values + (1 - share) * values.index_select(0, partners)


def mixed_targets(targets: Tensor, partners: Tensor, share: float, num_classes: int, dtype: torch.dtype) -> Tensor:
    """(N, C) distributions with ``share`` at the class y_i and the rest at the partner's, from class indices (N,).

    Example:
        >>> mixed_targets(torch.tensor([0, 2]), torch.tensor([1, 0]), 0.75, 3, torch.float32)
        tensor([[0.7500, 0.0000, 0.2500],
                [0.2500, 0.0000, 0.7500]])
    """
    own = torch.zeros(len(targets), num_classes, dtype=dtype, device=targets.device)
    return mix(own.scatter(1, targets.unsqueeze(1), 1.0), partners, share)


@dataclass(frozen=True)
class BatchMix:
    """How the samples of a batch are mixed."""

    partners: Tensor
    """(N,) a permutation: the sample that each one is mixed with."""
    share: float
    """lambda, the share of a sample that stays."""


class Mixing(CrossEntropy):
    """A method that mixes the samples of every batch, by one share per batch, as published. alpha = 0 mixes nothing.

    Each process mixes its own part of a batch. With ``+isda`` the targets are distributions for ISDA too: a mixed
    sample has the covariance of its larger share, and updates the statistics of that class.
    """

    def __init__(self, options: Any, network: Network, config: ClassificationConfig) -> None:
        super().__init__(options, network, config)
        if not 0 <= options.alpha < math.inf:
            raise ValueError(f"alpha must be a finite number >= 0, got {options.alpha}")
        self.alpha, self.num_classes = options.alpha, len(config.classes)

    @abstractmethod
    def mixed(self, batch: ImageBatch, mixture: BatchMix) -> tuple[ImageBatch, float]:
        """The batch with mixed images, and the share that its own labels keep."""

    def prepare(self, batch: ImageBatch) -> ImageBatch:
        """The mixed batch, with distributions as targets; the batch itself if nothing is mixed."""
        share = draw_share(self.alpha)
        if share == 1:
            return batch
        partners = send(torch.randperm(len(batch.targets)), batch.targets.device)
        mixed, own_share = self.mixed(batch, BatchMix(partners, share))
        if own_share == 1:
            return batch
        targets = mixed_targets(batch.targets, partners, own_share, self.num_classes, batch.images.dtype)
        return replace(mixed, targets=targets)


@dataclass(frozen=True, kw_only=True)
class MixupOptions(CrossEntropyOptions):
    """What may follow ``mixup:``, besides the options of the loss."""

    alpha: float = 1.0
    """The share of an image is drawn from Beta(alpha, alpha); 1 is the authors' for CIFAR, 0.2 for ImageNet."""


class Mixup(Mixing):
    """x = lambda x_i + (1 - lambda) x_j and the same of their labels, with lambda ~ Beta(alpha, alpha)."""

    name = "mixup"
    Options = MixupOptions
    grid = {"alpha": (0.2, 0.5, 1.0, 2.0)}  # noqa: RUF012, a class variable of the base

    def mixed(self, batch: ImageBatch, mixture: BatchMix) -> tuple[ImageBatch, float]:
        """Whole images."""
        return replace(batch, images=mix(batch.images, mixture.partners, mixture.share)), mixture.share


@dataclass(frozen=True, kw_only=True)
class CutMixOptions(CrossEntropyOptions):
    """What may follow ``cutmix:``, besides the options of the loss."""

    alpha: float = 1.0
    """The share of an image is drawn from Beta(alpha, alpha)."""
    probability: float = 0.5
    """Probability that a batch is mixed; 0.5 is the authors' for CIFAR, 1 for ImageNet."""


class Box(NamedTuple):
    """Rows top..bottom-1 and columns left..right-1."""

    top: int
    bottom: int
    left: int
    right: int

    @property
    def area(self) -> int:
        """Pixels."""
        return (self.bottom - self.top) * (self.right - self.left)


def draw_box(height: int, width: int, share: float) -> Box:
    """A box of about 1 - share of an image around a random pixel, clipped to the image.

    Example:
        >>> draw_box(8, 8, share=1.0).area
        0
    """
    ratio = math.sqrt(1 - share)
    spans = []
    for length in (height, width):
        half, centre = int(length * ratio) // 2, int(torch.randint(length, ()))
        spans += [max(centre - half, 0), min(centre + half, length)]
    return Box(*spans)


class CutMix(Mixing):
    """A box of every image is taken from its partner; labels are weighted by the area of the clipped box."""

    name = "cutmix"
    Options = CutMixOptions
    grid = {"probability": (0.25, 0.5, 0.75, 1.0)}  # noqa: RUF012, a class variable of the base

    def __init__(self, options: Any, network: Network, config: ClassificationConfig) -> None:
        super().__init__(options, network, config)
        if not 0 <= options.probability <= 1:
            raise ValueError(f"probability must lie in 0..1, got {options.probability}")
        self.probability = options.probability

    def prepare(self, batch: ImageBatch) -> ImageBatch:
        """The mixed batch, or, with probability 1 - p, the batch itself."""
        return super().prepare(batch) if float(torch.rand(())) < self.probability else batch

    def mixed(self, batch: ImageBatch, mixture: BatchMix) -> tuple[ImageBatch, float]:
        """The same box of all images of the batch."""
        height, width = batch.images.shape[2:]
        box = draw_box(height, width, mixture.share)
        images = batch.images.clone()
        window = (..., slice(box.top, box.bottom), slice(box.left, box.right))
        images[window] = batch.images[window].index_select(0, mixture.partners)
        return replace(batch, images=images), 1 - box.area / (height * width)


_STAGE = re.compile(r"(stage|block|layer)\d+")
_PUBLISHED = 3
"""The authors' residual networks mix the input and the outputs of the first two stages."""


@dataclass(frozen=True, kw_only=True)
class ManifoldMixupOptions(CrossEntropyOptions):
    """What may follow ``manifold-mixup:``, besides the options of the loss."""

    alpha: float = 2.0
    """The share of a sample is drawn from Beta(alpha, alpha); 2 is the authors'."""
    layers: int | None = None
    """Draw one of this many layers, from the input on: the input, each stage, the features; 3 are published."""


@dataclass(frozen=True)
class ManifoldMixBatch(ImageBatch):
    """A batch whose samples are mixed inside the network, after ``layer``."""

    layer: nn.Module
    mixture: BatchMix


def inner_layers(network: Network) -> dict[str, nn.Module]:
    """The layers whose outputs can be mixed: the stages or blocks of the body, if it names them, and the body itself.

    The last one, "features", is the input of the classifier.

    Example:
        >>> from isda.lab import networks
        >>> list(inner_layers(networks.create("resnet-8", num_classes=10)))
        ['stage1', 'stage2', 'stage3', 'features']
    """
    stages = {name: layer for name, layer in network.body.named_children() if _STAGE.fullmatch(name)}
    return stages | {"features": network.body}


class ManifoldMixup(Mixing):
    """Mixup of the images or, with equal probability, of the outputs of an inner layer."""

    name = "manifold-mixup"
    Options = ManifoldMixupOptions
    grid = {"alpha": (0.5, 1.0, 2.0, 4.0)}  # noqa: RUF012, a class variable of the base

    def __init__(self, options: Any, network: Network, config: ClassificationConfig) -> None:
        super().__init__(options, network, config)
        if config.compile:
            raise ValueError("method manifold-mixup does not support --compile: it mixes inside the network")
        inner = inner_layers(network)
        names = ["input", *inner]
        count = min(_PUBLISHED, len(names)) if options.layers is None else options.layers
        if not 1 <= count <= len(names):
            raise ValueError(f"layers must be from 1 to {len(names)} ({', '.join(names)}), got {count}")
        # In a tuple: the network's parameters are not the method's.
        self._inner = tuple(inner.values())[: count - 1]

    def mixed(self, batch: ImageBatch, mixture: BatchMix) -> tuple[ImageBatch, float]:
        """The batch with mixed images, or with the layer whose outputs are to be mixed."""
        layer = int(torch.randint(1 + len(self._inner), ()))
        if layer == 0:
            return replace(batch, images=mix(batch.images, mixture.partners, mixture.share)), mixture.share
        values = {field.name: getattr(batch, field.name) for field in fields(batch)}
        return ManifoldMixBatch(**values, layer=self._inner[layer - 1], mixture=mixture), mixture.share

    def forward(self, network: nn.Module, batch: ImageBatch) -> Outcome:
        """One term: the criterion, with the outputs of one layer mixed."""
        if not isinstance(batch, ManifoldMixBatch):
            return super().forward(network, batch)
        partners, share = batch.mixture.partners, batch.mixture.share
        hook = batch.layer.register_forward_hook(lambda layer, inputs, outputs: mix(outputs, partners, share))
        try:
            return super().forward(network, batch)
        finally:
            hook.remove()
