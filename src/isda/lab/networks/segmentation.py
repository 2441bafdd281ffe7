"""Networks that label pixels: PSPNet (Zhao et al., 2017) and DeepLab-v3 (Chen et al., 2017) on dilated ResNets.

Blocks and the backbone's parameter names are torchvision's, which is imported when a network is built.

>>> network = create("pspnet-resnet-18", num_classes=19, width=0.25)
>>> network.feature_dim, network.auxiliary_dim
(32, 32)
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from isda.lab.choices import check_choice, positive_integer
from isda.lab.networks.network import dropout_rate, initialise, scaled_channels
from isda.lab.networks.weight_files import match_weights, read_weights

DEPTHS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}
"""Blocks in the four stages (He et al., 2016, table 1)."""
ARCHITECTURES = ("pspnet", "deeplab-v3")
OUTPUT_STRIDES = (8, 16, 32)
STEMS = ("deep", "torchvision")


class DilatedResNet(nn.Module):
    """A residual network without classifier, for images (N, 3, H, W).

    A stage that would reduce the resolution below 1 / ``output_stride`` keeps it, and its 3x3 convolutions are dilated
    by the factor instead (Yu et al., 2017; Chen et al., 2017): at stride 8 the last two stages by 2 and 4.

    Args:
        depth: 18, 34 (basic blocks), 50 or 101 (bottlenecks).
        width: factor on all channel counts.
        output_stride: pixels of the image per position of the maps.
        stem: "deep", three 3x3 convolutions of 64, 64 and 128 channels as in the authors' code, or "torchvision", one
            7x7 convolution of 64.
        multi_grid: factors on the dilations of the last stage's blocks in turn; DeepLab-v3's publication has (1, 2, 4).
    """

    def __init__(
        self,
        depth: int,
        *,
        width: float = 1.0,
        output_stride: int = 8,
        stem: str = "deep",
        multi_grid: Sequence[int] = (1, 1, 1),
    ) -> None:
        from torchvision.models.resnet import BasicBlock, Bottleneck

        super().__init__()
        block = BasicBlock if depth < 50 else Bottleneck
        planes = [scaled_channels(count, width) for count in (64, 128, 256, 512)]
        self.stem = stem
        kernel = 3 if stem == "deep" else 7
        self.conv1 = nn.Conv2d(3, planes[0], kernel, 2, kernel // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(planes[0])
        current = planes[0]
        if stem == "deep":
            self.conv2 = nn.Conv2d(planes[0], planes[0], 3, padding=1, bias=False)
            self.bn2 = nn.BatchNorm2d(planes[0])
            current = scaled_channels(128, width)
            self.conv3 = nn.Conv2d(planes[0], current, 3, padding=1, bias=False)
            self.bn3 = nn.BatchNorm2d(current)
        self.relu = nn.ReLU(inplace=True)
        # The authors' pooling rounds up.
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1, ceil_mode=stem == "deep")
        reached, dilation, stages = 4, 1, []
        for stage, (count, blocks) in enumerate(zip(planes, DEPTHS[depth], strict=True), start=1):
            stride = 1 if stage == 1 else 2
            if reached * stride > output_stride:
                stride, dilation = 1, dilation * stride
            reached *= stride
            grid = multi_grid if stage == 4 else (1,)
            dilations = [dilation * grid[index % len(grid)] for index in range(blocks)]
            stages.append(_stage(block, current, count, stride, dilations))
            current = count * block.expansion
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.channels = (planes[2] * block.expansion, planes[3] * block.expansion)
        """Channels of the two maps that `forward` returns."""

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The maps of the last stage but one, and of the last."""
        maps = self.relu(self.bn1(self.conv1(images)))
        if self.stem == "deep":
            maps = self.relu(self.bn2(self.conv2(maps)))
            maps = self.relu(self.bn3(self.conv3(maps)))
        middle = self.layer3(self.layer2(self.layer1(self.maxpool(maps))))
        return middle, self.layer4(middle)


def _stage(block: Any, current: int, count: int, stride: int, dilations: Sequence[int]) -> nn.Sequential:
    """One block per dilation from ``current`` channels; the first has the stride."""
    channels, layers = count * block.expansion, nn.Sequential()
    for dilation in dilations:
        shortcut = None
        if stride != 1 or current != channels:
            shortcut = nn.Sequential(nn.Conv2d(current, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))
        layers.append(block(current, count, stride, shortcut))
        # torchvision's basic block has no argument for the dilation.
        for layer in layers[-1].modules():
            if isinstance(layer, nn.Conv2d) and layer.kernel_size == (3, 3):
                layer.dilation = layer.padding = (dilation, dilation)
        current, stride = channels, 1
    return layers


class FrozenBatchNorm2d(_BatchNorm):
    """Batch normalisation with fixed running statistics; weight and bias are trained."""

    def train(self, mode: bool = True) -> FrozenBatchNorm2d:
        """Stay in evaluation mode."""
        return super().train(False)

    def _check_input_dim(self, input: Tensor) -> None:
        """Maps of any number of dimensions."""


_Module = TypeVar("_Module", bound=nn.Module)


def freeze_batch_norm(network: _Module) -> _Module:
    """Freeze the running statistics of all batch normalisation in a network, which is changed in place and returned.

    Parameters and buffers stay the same tensors under the same names, so optimisers and state dicts remain valid.

    Example:
        >>> network = freeze_batch_norm(nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))).train()
        >>> network[1].training
        False
    """
    for module in network.modules():
        if isinstance(module, _BatchNorm):
            module.__class__ = FrozenBatchNorm2d
            module.eval()
    return network


def resize_maps(maps: Tensor, size: Sequence[int]) -> Tensor:
    """Resize (N, D, h, w) to (N, D, H, W) bilinearly; returns the maps themselves if they have that size.

    Example:
        >>> resize_maps(torch.tensor([[[[0.0, 2.0]]]]), (1, 3))
        tensor([[[[0., 1., 2.]]]])
    """
    if tuple(maps.shape[2:]) == tuple(size):
        return maps
    return F.interpolate(maps, size=tuple(size), mode="bilinear", align_corners=True)


class PyramidHead(nn.Module):
    """Maps pooled to bins x bins, projected, enlarged again and joined with the maps; then one 3x3 convolution.

    ``dropout`` is the rate at which whole channels of the features are dropped.
    """

    def __init__(
        self, in_channels: int, feature_dim: int, *, dropout: float = 0.1, bins: Sequence[int] = (1, 2, 3, 6)
    ) -> None:
        from torchvision.ops import Conv2dNormActivation

        super().__init__()
        self.levels = nn.ModuleList(
            nn.Sequential(nn.AdaptiveAvgPool2d(side), Conv2dNormActivation(in_channels, feature_dim, kernel_size=1))
            for side in bins
        )
        self.fuse = nn.Sequential(
            Conv2dNormActivation(in_channels + len(bins) * feature_dim, feature_dim, kernel_size=3),
            nn.Dropout2d(dropout),
        )

    def forward(self, maps: Tensor) -> Tensor:
        """Map (N, in_channels, h, w) to (N, feature_dim, h, w)."""
        context = [resize_maps(level(maps), maps.shape[2:]) for level in self.levels]
        features: Tensor = self.fuse(torch.cat([*context, maps], dim=1))
        return features


def atrous_head(in_channels: int, feature_dim: int, *, output_stride: int = 8, dropout: float = 0.1) -> nn.Module:
    """Torchvision's atrous spatial pyramid pooling, projected to the features by a 1x1 convolution.

    The branches have half as many channels as the features (256 and 512 for ResNet-101, as in the authors' code) and
    dilations of 12, 24 and 36 at output stride 8, which is 96, 192 and 288 pixels of the image at any.
    """
    from torchvision.models.segmentation.deeplabv3 import ASPP
    from torchvision.ops import Conv2dNormActivation

    inner = max(1, feature_dim // 2)
    pooling = ASPP(in_channels, [rate * 8 // output_stride for rate in (12, 24, 36)], inner)
    # torchvision's projection keeps the channels of the branches and has dropout 0.5.
    pooling.project = nn.Sequential(
        Conv2dNormActivation(len(pooling.convs) * inner, feature_dim, kernel_size=1), nn.Dropout2d(dropout)
    )
    # As one child, under which weight files have its parameters.
    return nn.Sequential(OrderedDict(pooling=pooling))


@dataclass(frozen=True)
class DenseOutputs:
    """Logits and the features that they were computed from, at the resolution of the features."""

    logits: Tensor
    """(N, C, h, w)."""
    features: Tensor
    """(N, A, h, w): what the classifier reads."""
    auxiliary_logits: Tensor | None = None
    """(N, C, h, w) of the auxiliary head, where there is one."""
    auxiliary_features: Tensor | None = None
    """(N, B, h, w): what the auxiliary classifier reads."""


class SegmentationNetwork(nn.Module):
    """A backbone with a head, and optionally an auxiliary head on the backbone's last stage but one.

    The classifiers read exactly the features that :meth:`outputs` returns: dropout comes before.

    Args:
        backbone: maps images to two maps.
        head: maps the second to features (N, feature_dim, h, w).
        feature_dim: A.
        num_classes: C.
        auxiliary_head: maps the first to as many features, or None.

    Example:
        >>> network = create("deeplab-v3-resnet-18", num_classes=5, width=0.25)
        >>> images = torch.zeros(2, 3, 33, 40)
        >>> network(images).shape, network.outputs(images).features.shape
        (torch.Size([2, 5, 33, 40]), torch.Size([2, 32, 5, 6]))
    """

    def __init__(
        self,
        backbone: DilatedResNet,
        head: nn.Module,
        feature_dim: int,
        num_classes: int,
        auxiliary_head: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.auxiliary_head = auxiliary_head
        self.auxiliary_classifier = None if auxiliary_head is None else nn.Conv2d(feature_dim, num_classes, 1)
        self.head = head
        self.classifier = nn.Conv2d(feature_dim, num_classes, 1)
        for classifier in (self.classifier, self.auxiliary_classifier):
            if classifier is not None and classifier.bias is not None:
                nn.init.zeros_(classifier.bias)

    @property
    def feature_dim(self) -> int:
        """The number of features A that the classifier reads."""
        return self.classifier.in_channels

    @property
    def auxiliary_dim(self) -> int | None:
        """The number of features that the auxiliary classifier reads; None where there is none."""
        return None if self.auxiliary_classifier is None else self.auxiliary_classifier.in_channels

    def get_classifier(self) -> nn.Conv2d:
        """The classifier; the method has the name of timm's."""
        return self.classifier

    def outputs(self, images: Tensor) -> DenseOutputs:
        """Logits and features of both heads at the resolution of the features."""
        self._check(images)
        middle, last = self.backbone(images)
        features = self.head(last)
        logits = self.classifier(features)
        if self.auxiliary_head is None or self.auxiliary_classifier is None:
            return DenseOutputs(logits, features)
        auxiliary_features = self.auxiliary_head(middle)
        return DenseOutputs(logits, features, self.auxiliary_classifier(auxiliary_features), auxiliary_features)

    @overload
    def forward(self, images: Tensor, *, dense: Literal[False] = False) -> Tensor: ...

    @overload
    def forward(self, images: Tensor, *, dense: Literal[True]) -> DenseOutputs: ...

    def forward(self, images: Tensor, *, dense: bool = False) -> Tensor | DenseOutputs:
        """The logits (N, C, H, W) of images (N, 3, H, W); with ``dense`` what :meth:`outputs` returns.

        ``dense`` is for wrappers such as DistributedDataParallel, which forward calls of the network only.
        """
        if dense:
            return self.outputs(images)
        self._check(images)
        return resize_maps(self.classifier(self.head(self.backbone(images)[1])), images.shape[2:])

    def _check(self, images: Tensor) -> None:
        if images.ndim != 4 or images.shape[1] != 3:
            raise ValueError(f"images must have shape (N, 3, H, W), got {tuple(images.shape)}")
        # Frozen or synchronised batch normalisation works with one image.
        if len(images) == 1 and any(isinstance(m, nn.BatchNorm2d) and m.training for m in self.head.modules()):
            raise ValueError(
                "images must hold at least 2 images per process in training, got 1: each is pooled to one position, of "
                "which batch normalisation needs several; freeze_batch_norm or torch.nn.SyncBatchNorm helps"
            )


def names() -> list[str]:
    """The names that :func:`create` accepts.

    Example:
        >>> "pspnet-resnet-101" in names()
        True
    """
    return [f"{head}-resnet-{depth}" for head in ARCHITECTURES for depth in DEPTHS]


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
    from torchvision.ops import Conv2dNormActivation

    check_choice("name", name, names())
    positive_integer("num_classes", num_classes)
    rate = dropout_rate(dropout)
    if output_stride not in OUTPUT_STRIDES:
        raise ValueError(f"output_stride must be one of {', '.join(map(str, OUTPUT_STRIDES))}, got {output_stride!r}")
    if not multi_grid or min(multi_grid) < 1:
        raise ValueError(f"multi_grid must hold factors of at least 1, got {tuple(multi_grid)}")
    stem = check_choice("stem", stem or ("deep" if pretrained is None else "torchvision"), STEMS)
    architecture, _, number = name.rpartition("-resnet-")
    depth = int(number)
    backbone = DilatedResNet(depth, width=width, output_stride=output_stride, stem=stem, multi_grid=multi_grid)
    middle, last = backbone.channels
    features = max(1, last // 4)
    head: nn.Module
    if architecture == "pspnet":
        head = PyramidHead(last, features, dropout=rate)
    else:
        head = atrous_head(last, features, output_stride=output_stride, dropout=rate)
    auxiliary_head = None
    if auxiliary:  # one 3x3 convolution, as in both publications and the authors' code
        auxiliary_head = nn.Sequential(Conv2dNormActivation(middle, features, kernel_size=3), nn.Dropout2d(rate))
    network = SegmentationNetwork(backbone, head, features, num_classes, auxiliary_head)
    for part in (network.backbone, network.head, network.auxiliary_head):
        if part is not None:
            initialise(part)
    if pretrained is not None:
        state = _torchvision_state(depth) if pretrained == "torchvision" else read_weights(Path(pretrained))
        own = backbone.state_dict()
        backbone.load_state_dict(own | match_weights(own, state, str(pretrained), ("fc.",)))
    return network


def _torchvision_state(depth: int) -> dict[str, Tensor]:
    """Torchvision's first ImageNet weights of a residual network, downloaded if they are not in torch's cache."""
    from torchvision import models

    try:
        weights = models.get_model_weights(f"resnet{depth}").IMAGENET1K_V1
        return dict(weights.get_state_dict(progress=False, check_hash=True))
    except (OSError, RuntimeError) as error:
        raise ValueError(
            f"pretrained weights of torchvision's resnet{depth} could not be fetched ({error}); give a file with them"
        ) from error
