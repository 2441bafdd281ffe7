"""The segmentation networks by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from torch import nn

from isda.choices import check_choice
from isda.networks.arguments import dropout_rate, positive_integer, scaled_channels
from isda.networks.initialisation import initialise
from isda.networks.segmentation.atrous import AtrousHead
from isda.networks.segmentation.backbone import DEPTHS, OUTPUT_STRIDES, STEMS, DilatedResNet
from isda.networks.segmentation.network import SegmentationNetwork
from isda.networks.segmentation.pretrained import TORCHVISION, load_backbone, torchvision_state
from isda.networks.segmentation.pyramid import PyramidHead
from isda.networks.weight_files import read_weights

__all__ = ["HEADS", "create", "names"]

HEADS: dict[str, Callable[[int, int, int, float], nn.Module]] = {
    "pspnet": lambda channels, features, _, dropout: PyramidHead(channels, features, dropout=dropout),
    "deeplab-v3": lambda channels, features, stride, dropout: AtrousHead(
        channels, features, output_stride=stride, dropout=dropout
    ),
}
"""By the first part of a network's name: the head for (channels, features, output stride, dropout)."""


def names() -> list[str]:
    """The names that :func:`create` knows.

    Example:
        >>> "pspnet-resnet-101" in names()
        True
    """
    return [f"{head}-resnet-{depth}" for head in HEADS for depth in DEPTHS]


def create(
    name: str,
    num_classes: int,
    *,
    width: float = 1.0,
    output_stride: int = 8,
    stem: str | None = None,
    auxiliary: bool = True,
    pretrained: str | Path | None = None,
    dropout: float = 0.1,
    multi_grid: Sequence[int] = (1, 1, 1),
) -> SegmentationNetwork:
    """Build a segmentation network by name; the defaults are those of the authors' code.

    Both heads make a quarter as many features as the backbone's last stage has channels: 512 for ResNet-101.

    Args:
        name: one of :func:`names`.
        num_classes: number of logits C.
        width: factor on the channels of backbone and heads.
        output_stride: pixels of the image per position of the features: 8, 16 or 32.
        stem: "deep" or "torchvision", see :class:`DilatedResNet`; by default the deep one without pretrained weights,
            torchvision's with them.
        auxiliary: whether there is an auxiliary head.
        pretrained: "torchvision" for its ImageNet weights, or a file of weights of the backbone under torchvision's
            names (of safetensors, or of ``torch.save``).
        dropout: rate at which whole channels of features are dropped in training.
        multi_grid: factors on the dilations of the last stage's blocks; DeepLab-v3's publication has (1, 2, 4), the
            authors' code none.

    Raises:
        ValueError: an unknown name (with the nearest known one), an option out of range, or weights that do not fit.

    Example:
        >>> create("pspnet-resnet-18", num_classes=11, width=0.25, auxiliary=False).classifier
        Conv2d(32, 11, kernel_size=(1, 1), stride=(1, 1))
    """
    check_choice("name", name, names())
    positive_integer("num_classes", num_classes)
    scaled_channels(64, width)
    rate = dropout_rate(dropout)
    if output_stride not in OUTPUT_STRIDES:
        raise ValueError(f"output_stride must be one of {', '.join(map(str, OUTPUT_STRIDES))}, got {output_stride!r}")
    if not multi_grid:
        raise ValueError("multi_grid must hold at least one factor, got none")
    for factor in multi_grid:
        positive_integer("multi_grid", factor)
    stem = check_choice("stem", stem or ("deep" if pretrained is None else "torchvision"), STEMS)
    architecture, _, depth = name.rpartition("-resnet-")
    state = None
    if pretrained == TORCHVISION:
        if width != 1 or stem != "torchvision":
            raise ValueError(f"pretrained 'torchvision' needs width 1.0 and its stem, got width {width}, stem {stem!r}")
        state = torchvision_state(int(depth))
    elif pretrained is not None:
        state = read_weights(Path(pretrained))
    backbone = DilatedResNet(int(depth), width=width, output_stride=output_stride, stem=stem, multi_grid=multi_grid)
    middle, last = backbone.channels
    features = max(1, last // 4)
    network = SegmentationNetwork(
        backbone,
        HEADS[architecture](last, features, output_stride, rate),
        features,
        num_classes,
        _auxiliary_head(middle, features, rate) if auxiliary else None,
        features if auxiliary else None,
    )
    for part in (network.backbone, network.head, network.auxiliary_head):
        if part is not None:
            initialise(part)
    if state is not None:
        load_backbone(backbone, state, str(pretrained))
    return network


def _auxiliary_head(in_channels: int, feature_dim: int, dropout: float) -> nn.Module:
    """One 3x3 convolution, as both publications and the authors' code have it."""
    from torchvision.ops import Conv2dNormActivation

    return nn.Sequential(Conv2dNormActivation(in_channels, feature_dim, kernel_size=3), nn.Dropout2d(dropout))
