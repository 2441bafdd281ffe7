"""From a classifier to the maps of its stages: the last output of each resolution (Lin et al., 2017, section 3)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torchvision.models._utils import IntermediateLayerGetter

from isda.choices import did_you_mean
from isda.networks.modes import in_eval_mode
from isda.networks.network import Network
from isda.networks.registry import TIMM_PREFIX, create

__all__ = ["MOST_STAGES", "Stages", "stages_of"]

MOST_STAGES = 4
"""The coarsest maps that a pyramid is built on; those of stride 1 are never."""
PROBE = 64
"""Pixels of the image that shows which resolutions there are."""


@dataclass(frozen=True)
class Stages:
    """A network up to its last map."""

    body: nn.Module
    """Maps images (N, 3, H, W) to the chosen maps (N, channels, H / stride, W / stride), from fine to coarse."""
    channels: list[int]
    strides: list[int]
    layers: tuple[tuple[nn.Module, int], ...]
    """The modules that run one after the other, each with its stage, from 1; none where there is no such order."""

    def first(self, stages: int) -> list[nn.Module]:
        """The modules of the stem and of the first stages."""
        if stages and not self.layers:
            raise ValueError("frozen_stages must be 0 for a backbone whose layers do not run one after the other")
        return [module for module, stage in self.layers if stage <= stages]


def stages_of(backbone: str | Network, **options: Any) -> Stages:
    """The stages of a network.

    Args:
        backbone: a network of `isda.networks`, or its name, or ``timm:NAME``.
        options: of the network, where it is a name.

    Raises:
        ValueError: an unknown name, or a network without maps.

    Example:
        >>> stages = stages_of("fast-cnn")
        >>> stages.channels, stages.strides
        ([32, 64, 128], [2, 4, 8])
    """
    if isinstance(backbone, str):
        if backbone.startswith(TIMM_PREFIX):
            return _timm_stages(backbone.removeprefix(TIMM_PREFIX), **options)
        # What the classifier is for does not matter: it is cut off.
        backbone = create(backbone, num_classes=1, **options)
    return _sequential_stages(backbone)


def _sequential_stages(network: Network) -> Stages:
    """Of networks whose body runs its children one after the other, as all of this package do."""
    body = network.body
    features = getattr(body, "features", None)
    sequence = features if isinstance(features, nn.Module) else body
    last: dict[int, tuple[str, int]] = {}
    with torch.no_grad(), in_eval_mode(sequence):
        parameter = next(sequence.parameters())
        channels = next(module.in_channels for module in sequence.modules() if isinstance(module, nn.Conv2d))
        maps = torch.zeros(1, channels, PROBE, PROBE, dtype=parameter.dtype, device=parameter.device)
        for name, layer in sequence.named_children():
            maps = layer(maps)
            if maps.dim() != 4 or maps.shape[-1] == 1:
                break
            last[2 ** round(math.log2(PROBE / maps.shape[-1]))] = (name, maps.shape[1])
    last.pop(1, None)
    if channels != 3 or not last:
        raise ValueError(
            f"a backbone must make maps of colour images, got a network of {channels} channels with strides "
            f"{sorted(last) or 'of 1 only'}"
        )
    chosen = sorted(last)[-MOST_STAGES:]
    returned = {last[stride][0]: str(number) for number, stride in enumerate(chosen)}
    getter = IntermediateLayerGetter(sequence, returned)
    layers, stage = [], 1
    for name, layer in getter.items():
        layers.append((layer, stage))
        stage += name in returned
    return Stages(getter, [last[stride][1] for stride in chosen], chosen, tuple(layers))


def _timm_stages(name: str, **options: Any) -> Stages:
    import timm

    if not timm.is_model(name):
        raise ValueError(f"timm has no model {name!r}{did_you_mean(name, timm.list_models())}")
    try:
        body: Any = timm.create_model(name, features_only=True, **options)
    except (RuntimeError, TypeError, AttributeError, AssertionError) as error:
        raise ValueError(f"timm:{name} cannot be a backbone: {str(error).partition(chr(10))[0]}") from error
    reductions = body.feature_info.reduction()
    chosen = [index for index, stride in enumerate(reductions) if stride > 1][-MOST_STAGES:]
    body = timm.create_model(name, features_only=True, out_indices=chosen, **options)
    layers, stage = [], 1
    returned = set(getattr(body, "return_layers", {}))
    for child, layer in body.named_children() if returned else ():
        layers.append((layer, stage))
        stage += child in returned
    return Stages(body, body.feature_info.channels(), body.feature_info.reduction(), tuple(layers))
