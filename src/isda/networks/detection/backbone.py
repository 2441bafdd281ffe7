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

from isda._utils.choices import did_you_mean
from isda.networks.network import Network, in_eval_mode
from isda.networks.registry import create
from isda.networks.timm_models import TIMM_PREFIX
from isda.networks.weight_files import match_weights

MAX_STAGES = 4
"""The coarsest maps that a pyramid is built on; those of stride 1 are never."""
PROBE_SIZE = 64
"""Pixels of the image that shows which resolutions there are."""


@dataclass(frozen=True)
class BackboneStages:
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


def backbone_stages(backbone: str | Network, **options: Any) -> BackboneStages:
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


def _sequential_stages(network: Network) -> BackboneStages:
    """Of networks whose body runs its children one after the other, as all of this package do."""
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

    if not timm.is_model(name):
        raise ValueError(f"timm has no model {name!r}{did_you_mean(name, timm.list_models())}")
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
"""Of the pyramid: the stages' and as many subsampled ones as are missing."""


class PooledLevels(ExtraFPNBlock):
    """Further levels, each every second position of the one before."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, results: list[Tensor], x: list[Tensor], names: list[str]) -> tuple[list[Tensor], list[str]]:
        """Append them to the results of the pyramid."""
        for number in range(self.count):
            results.append(F.max_pool2d(results[-1], kernel_size=1, stride=2))
            names.append(f"pool{number}")
        return results, names


class FeaturePyramid(nn.Module):
    """Images to maps with one number of channels, at five resolutions. Parameters are named as torchvision names them.

    Args:
        stages: of the backbone.
        out_channels: of every map.
    """

    def __init__(self, stages: BackboneStages, out_channels: int) -> None:
        super().__init__()
        self.body = stages.body
        self.out_channels = out_channels
        pooled = max(1, PYRAMID_LEVELS - len(stages.channels))
        self.fpn = FeaturePyramidNetwork(stages.channels, out_channels, PooledLevels(pooled))
        self.strides = [*stages.strides, *(stages.strides[-1] * 2**number for number in range(1, pooled + 1))]
        self.names = [str(number) for number in range(len(stages.channels))]
        """Of the levels that regions are pooled from."""

    def forward(self, images: Tensor) -> OrderedDict[str, Tensor]:
        """Map (N, 3, H, W) to the levels, from fine to coarse."""
        maps = self.body(images)
        # timm gives a list.
        named = maps if isinstance(maps, OrderedDict) else OrderedDict((str(i), one) for i, one in enumerate(maps))
        levels: OrderedDict[str, Tensor] = self.fpn(named)
        return levels


def load_backbone_weights(body: nn.Module, weights: Mapping[str, Tensor], source: str) -> None:
    """Give a detector's backbone (``detector.backbone.body``) the weights of a classifier.

    Args:
        body: whose tensors must all be among the weights, whatever their names begin with.
        weights: by name; those of layers that the detector does not have, such as a classifier, are left.
        source: where they come from, for messages.

    Raises:
        ValueError: names the first tensor that is missing or has another shape.
    """
    wanted = body.state_dict()
    body.load_state_dict(wanted | match_weights(wanted, weights, source).found)
