"""Segmentation networks by name: PSPNet (Zhao et al., 2017) and DeepLab-v3 (Chen et al., 2017) heads on a backbone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isda._utils.checks import positive_integer
from isda._utils.choices import check_choice
from isda._utils.errors import expect_type
from isda.lab.networks.network import dropout_rate, initialise, scaled_channels
from isda.lab.networks.segmentation.backbone import DEPTHS, OUTPUT_STRIDES, STEMS, DilatedResNet, torchvision_state
from isda.lab.networks.weight_files import match_weights, read_weights


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

    Example:
        >>> PyramidHead(16, 4)(torch.ones(2, 16, 5, 7)).shape
        torch.Size([2, 4, 5, 7])
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


class AtrousHead(nn.Module):
    """torchvision's atrous spatial pyramid pooling, projected to the features by a 1x1 convolution.

    The branches have half as many channels as the features (256 and 512 for ResNet-101, as in the authors' code) and
    dilations of 12, 24 and 36 at output stride 8, which is 96, 192 and 288 pixels of the image at any.

    ``dropout`` is the rate at which whole channels of the features are dropped.

    Example:
        >>> import torch
        >>> AtrousHead(16, 4, output_stride=16)(torch.ones(2, 16, 5, 7)).shape
        torch.Size([2, 4, 5, 7])
    """

    def __init__(self, in_channels: int, feature_dim: int, *, output_stride: int = 8, dropout: float = 0.1) -> None:
        from torchvision.models.segmentation.deeplabv3 import ASPP
        from torchvision.ops import Conv2dNormActivation

        super().__init__()
        rates = [rate * 8 // output_stride for rate in (12, 24, 36)]
        inner = max(1, feature_dim // 2)
        self.pooling = ASPP(in_channels, rates, inner)
        # torchvision's projection keeps the channels of the branches and has dropout 0.5.
        self.pooling.project = nn.Sequential(
            Conv2dNormActivation(len(self.pooling.convs) * inner, feature_dim, kernel_size=1), nn.Dropout2d(dropout)
        )

    def forward(self, maps: Tensor) -> Tensor:
        """Map (N, in_channels, h, w) to (N, feature_dim, h, w)."""
        features: Tensor = self.pooling(maps)
        return features


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
        auxiliary_head: maps the first to features, or None.
        auxiliary_dim: their number.

    Example:
        >>> import torch
        >>> from isda.lab.networks import segmentation
        >>> network = segmentation.create("deeplab-v3-resnet-18", num_classes=5, width=0.25)
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
        auxiliary_dim: int | None = None,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.auxiliary_head = auxiliary_head
        self.auxiliary_classifier = None if auxiliary_dim is None else _classifier(auxiliary_dim, num_classes)
        self.head = head
        self.classifier = _classifier(feature_dim, num_classes)

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
        """Logits and features of both heads at the resolution of the features.

        Raises:
            ValueError: images of another shape than (N, 3, H, W), or a single one in training: a head pools each image
                to one position, of which batch normalisation cannot estimate a variance.
        """
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


def _classifier(feature_dim: int, num_classes: int) -> nn.Conv2d:
    classifier = nn.Conv2d(feature_dim, num_classes, 1)
    nn.init.zeros_(expect_type(classifier.bias, nn.Parameter))
    return classifier


ARCHITECTURES = ("pspnet", "deeplab-v3")


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
    if pretrained == "torchvision":
        if width != 1 or stem != "torchvision":
            raise ValueError(f"pretrained 'torchvision' needs width 1.0 and its stem, got width {width}, stem {stem!r}")
        state = torchvision_state(int(depth))
    elif pretrained is not None:
        state = read_weights(Path(pretrained))
    if state is not None and "conv1.weight" in state and ("conv2.weight" in state) != (stem == "deep"):
        raise ValueError(f"pretrained must be for the stem {stem!r}, got weights for the other stem in {pretrained}")
    backbone = DilatedResNet(int(depth), width=width, output_stride=output_stride, stem=stem, multi_grid=multi_grid)
    middle, last = backbone.channels
    features = max(1, last // 4)
    head: nn.Module
    if architecture == "pspnet":
        head = PyramidHead(last, features, dropout=rate)
    else:
        head = AtrousHead(last, features, output_stride=output_stride, dropout=rate)
    auxiliary_head = None
    if auxiliary:  # one 3x3 convolution, as in both publications and the authors' code
        auxiliary_head = nn.Sequential(Conv2dNormActivation(middle, features, kernel_size=3), nn.Dropout2d(rate))
    network = SegmentationNetwork(
        backbone, head, features, num_classes, auxiliary_head, features if auxiliary else None
    )
    for part in (network.backbone, network.head, network.auxiliary_head):
        if part is not None:
            initialise(part)
    if state is not None:
        own = backbone.state_dict()
        backbone.load_state_dict(own | match_weights(own, state, str(pretrained), ("fc.",)))
    return network
