"""Feature pyramids (Lin et al., 2017) on the stages of a classification network, and its pretrained weights."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models._utils import IntermediateLayerGetter
from torchvision.ops.feature_pyramid_network import ExtraFPNBlock, FeaturePyramidNetwork

from isda.lab.devices import in_eval_mode
from isda.lab.networks.network import Network
from isda.lab.networks.registry import create
from isda.lab.networks.timm_models import TIMM_PREFIX, check_timm_model
from isda.lab.networks.weight_files import match_weights

MAX_STAGES = 4
"""A pyramid is built on at most so many of the coarsest maps, of stride 2 or more."""
PROBE_SIZE = 64
"""Side of the image that is run through a network to find the strides of its layers."""


@dataclass(frozen=True)
class BackboneStages:
    """The convolutional part of a network."""

    body: nn.Module
    """Maps images (N, 3, H, W) to the chosen maps (N, channels, H / stride, W / stride), from fine to coarse."""
    channels: list[int]
    strides: list[int]
    layers: tuple[tuple[nn.Module, int], ...]
    """Modules in the order in which they run, each with its stage from 1; empty if they do not run in sequence."""

    def first(self, stages: int) -> list[nn.Module]:
        """The modules of the stem and of the first stages."""
        if stages and not self.layers:
            raise ValueError("frozen_stages must be 0 for a backbone whose layers do not run one after the other")
        return [module for module, stage in self.layers if stage <= stages]


def backbone_stages(backbone: str | Network, **options: Any) -> BackboneStages:
    """The stages of a network, given as a `Network` or by name with its options.

    Example:
        >>> stages = backbone_stages("fast-cnn")
        >>> stages.channels, stages.strides
        ([32, 64, 128], [2, 4, 8])
    """
    if isinstance(backbone, str):
        if backbone.startswith(TIMM_PREFIX):
            return _timm_stages(backbone.removeprefix(TIMM_PREFIX), **options)
        backbone = create(backbone, num_classes=1, **options)
    return _sequential_stages(backbone)


def _sequential_stages(network: Network) -> BackboneStages:
    """The stages of a network whose body runs its children in sequence, as all of this package do."""
    body = network.body
    features = getattr(body, "features", None)
    sequence = features if isinstance(features, nn.Module) else body
    last: dict[int, tuple[str, int]] = {}
    with torch.no_grad(), in_eval_mode(sequence):
        parameter = next(sequence.parameters())
        channels = next(module.in_channels for module in sequence.modules() if isinstance(module, nn.Conv2d))
        maps = torch.zeros(1, channels, PROBE_SIZE, PROBE_SIZE, dtype=parameter.dtype, device=parameter.device)
        for name, layer in sequence.named_children():
            maps = layer(maps)
            if maps.dim() != 4 or maps.shape[-1] == 1:
                break
            last[2 ** round(math.log2(PROBE_SIZE / maps.shape[-1]))] = (name, maps.shape[1])
    last.pop(1, None)
    if channels != 3 or not last:
        raise ValueError(
            f"a backbone must make maps of colour images, got a network of {channels} channels with strides "
            f"{sorted(last) or 'of 1 only'}"
        )
    chosen = sorted(last)[-MAX_STAGES:]
    returned = {last[stride][0]: str(number) for number, stride in enumerate(chosen)}
    getter = IntermediateLayerGetter(sequence, returned)
    layers, stage = [], 1
    for name, layer in getter.items():
        layers.append((layer, stage))
        stage += name in returned
    return BackboneStages(getter, [last[stride][1] for stride in chosen], chosen, tuple(layers))


def _timm_stages(name: str, **options: Any) -> BackboneStages:
    import timm

    check_timm_model(name)
    try:
        body: Any = timm.create_model(name, features_only=True, **options)
    except (RuntimeError, TypeError, AttributeError, AssertionError) as error:
        raise ValueError(f"timm:{name} cannot be a backbone: {str(error).partition(chr(10))[0]}") from error
    reductions = body.feature_info.reduction()
    chosen = [index for index, stride in enumerate(reductions) if stride > 1][-MAX_STAGES:]
    body = timm.create_model(name, features_only=True, out_indices=chosen, **options)
    layers, stage = [], 1
    returned = set(getattr(body, "return_layers", {}))
    for child, layer in body.named_children() if returned else ():
        layers.append((layer, stage))
        stage += child in returned
    return BackboneStages(body, body.feature_info.channels(), body.feature_info.reduction(), tuple(layers))


PYRAMID_LEVELS = 5
"""Levels of the pyramid; those beyond the stages of the backbone are subsampled."""


class PooledLevels(ExtraFPNBlock):
    """Further levels, each every second position of the one before."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, results: list[Tensor], x: list[Tensor], names: list[str]) -> tuple[list[Tensor], list[str]]:
        """Append the levels to the results of the pyramid."""
        for number in range(self.count):
            results.append(F.max_pool2d(results[-1], kernel_size=1, stride=2))
            names.append(f"pool{number}")
        return results, names


class FeaturePyramid(nn.Module):
    """Maps images to maps of ``out_channels`` channels at five resolutions, with torchvision's parameter names."""

    def __init__(self, stages: BackboneStages, out_channels: int) -> None:
        super().__init__()
        self.body = stages.body
        self.out_channels = out_channels
        pooled = max(1, PYRAMID_LEVELS - len(stages.channels))
        self.fpn = FeaturePyramidNetwork(stages.channels, out_channels, PooledLevels(pooled))
        self.strides = [*stages.strides, *(stages.strides[-1] * 2**number for number in range(1, pooled + 1))]
        self.names = [str(number) for number in range(len(stages.channels))]
        """Names of the levels that regions are pooled from."""

    def forward(self, images: Tensor) -> OrderedDict[str, Tensor]:
        """Map (N, 3, H, W) to the levels, from fine to coarse."""
        maps = self.body(images)
        if not isinstance(maps, OrderedDict):  # timm returns a list
            maps = OrderedDict((str(index), level) for index, level in enumerate(maps))
        levels: OrderedDict[str, Tensor] = self.fpn(maps)
        return levels


def load_backbone_weights(body: nn.Module, weights: Mapping[str, Tensor], source: str) -> None:
    """Load the weights of a classification network into a detector's backbone (``detector.backbone.body``).

    They must hold all tensors of the body, under any known prefix, and may hold others. Messages name ``source``.
    """
    own = body.state_dict()
    body.load_state_dict(own | match_weights(own, weights, source))
