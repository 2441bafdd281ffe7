"""Manifold mixup (Verma et al., ICML 2019): what is mixed are the outputs of a layer, drawn anew for every batch."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import nn

from isda.classification.batches import Batch
from isda.classification.config import Config
from isda.classification.methods.cross_entropy import CrossEntropy
from isda.classification.methods.isda import ISDA
from isda.classification.methods.mixing import Mixing, Mixture, mix
from isda.classification.methods.on_top import both_options
from isda.engine.method import Outcome
from isda.networks import Network

__all__ = ["ManifoldMixup", "ManifoldMixupISDA", "ManifoldMixupOptions", "MixedInside", "inner_layers"]

_STAGE = re.compile(r"(stage|block|layer)\d+")
_PUBLISHED = 3
"""The authors' residual networks mix the input and the outputs of the first two stages."""


@dataclass(frozen=True, kw_only=True)
class ManifoldMixupOptions:
    """What may follow ``manifold-mixup:``, beside the options of the loss."""

    alpha: float = 2.0
    """The share of a sample is drawn from Beta(alpha, alpha); 2 is the authors'."""
    layers: int | None = None
    """How many layers, from the input on, one is drawn from: the input, each stage, the features; 3 are published."""


@dataclass(frozen=True)
class MixedInside(Batch):
    """A batch whose samples are mixed inside the network, after ``layer``."""

    layer: nn.Module
    mixture: Mixture


def inner_layers(network: Network) -> dict[str, nn.Module]:
    """The layers behind whose outputs samples can be mixed: the stages or blocks of the body, where it names them.

    The last one, "features", is the body itself: what the classifier reads.

    Example:
        >>> from isda import networks
        >>> list(inner_layers(networks.create("resnet-8", num_classes=10)))
        ['stage1', 'stage2', 'stage3', 'features']
    """
    stages = {name: layer for name, layer in network.body.named_children() if _STAGE.fullmatch(name)}
    return stages | {"features": network.body}


class ManifoldMixup(Mixing):
    """Mixup of the images or, with equal chances, of the outputs of an inner layer."""

    name = "manifold-mixup"
    Options = both_options(ManifoldMixupOptions, CrossEntropy)
    grid = {"alpha": (0.5, 1.0, 2.0, 4.0)}  # noqa: RUF012, a class variable of the base

    def __init__(self, options: Any, network: Network, config: Config) -> None:
        super().__init__(options, network, config)
        if config.compile:
            raise ValueError("compile must not be asked for with manifold-mixup, which mixes inside the network")
        inner = inner_layers(network)
        known = ["input", *inner]
        count = min(_PUBLISHED, len(known)) if options.layers is None else options.layers
        if not 1 <= count <= len(known):
            raise ValueError(f"layers must be from 1 to {len(known)} ({', '.join(known)}), got {count}")
        # In a tuple: the network's parameters are not the method's.
        self._inner = tuple(inner.values())[: count - 1]

    def mixed(self, batch: Batch, mixture: Mixture) -> tuple[Batch, float]:
        """The images mixed, or a batch that says where the network mixes."""
        drawn = int(torch.randint(1 + len(self._inner), ()))
        if drawn == 0:
            return replace(batch, images=mix(batch.images, mixture.partners, mixture.share)), mixture.share
        values = {field.name: getattr(batch, field.name) for field in fields(batch)}
        return MixedInside(**values, layer=self._inner[drawn - 1], mixture=mixture), mixture.share

    def forward(self, network: nn.Module, batch: Batch) -> Outcome:
        """The terms of the loss below, with the outputs of one layer mixed on their way."""
        if not isinstance(batch, MixedInside):
            return super().forward(network, batch)
        partners, share = batch.mixture.partners, batch.mixture.share
        hook = batch.layer.register_forward_hook(lambda layer, inputs, outputs: mix(outputs, partners, share))
        try:
            return super().forward(network, batch)
        finally:
            hook.remove()


class ManifoldMixupISDA(ManifoldMixup):
    """ISDA on mixed samples."""

    name = "manifold-mixup+isda"
    base_type = ISDA
    Options = both_options(ManifoldMixupOptions, ISDA)
