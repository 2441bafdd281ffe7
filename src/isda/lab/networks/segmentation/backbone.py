"""Dilated residual networks, their ImageNet weights, and frozen batch normalisation.

Blocks and parameter names are torchvision's. torchvision is imported when a network is built.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from isda._utils.choices import check_choice
from isda.lab.networks.network import scaled_channels

DEPTHS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}
"""Blocks in the four stages (He et al., 2016, table 1)."""
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

    Example:
        >>> DilatedResNet(18, width=0.25).channels
        (64, 128)
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
        self.stem = check_choice("stem", stem, STEMS)
        self.conv1 = nn.Conv2d(3, planes[0], 3 if stem == "deep" else 7, 2, 1 if stem == "deep" else 3, bias=False)
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
    layers = nn.Sequential()
    for index, dilation in enumerate(dilations):
        shortcut = None
        if index == 0 and (stride != 1 or current != count * block.expansion):
            shortcut = nn.Sequential(
                nn.Conv2d(current, count * block.expansion, 1, stride, bias=False),
                nn.BatchNorm2d(count * block.expansion),
            )
        layers.append(block(current, count, stride if index == 0 else 1, shortcut))
        # torchvision's basic block has no argument for the dilation.
        for layer in layers[-1].modules():
            if isinstance(layer, nn.Conv2d) and layer.kernel_size == (3, 3):
                layer.dilation = layer.padding = (dilation, dilation)
        current = count * block.expansion
    return layers


def torchvision_state(depth: int) -> dict[str, Tensor]:
    """Torchvision's first ImageNet weights of a residual network, downloaded if they are not in torch's cache.

    Raises:
        ValueError: the download failed.
    """
    from torchvision import models

    try:
        weights = models.get_model_weights(f"resnet{depth}").IMAGENET1K_V1
        return dict(weights.get_state_dict(progress=False, check_hash=True))
    except (OSError, RuntimeError) as error:
        raise ValueError(
            f"pretrained weights of torchvision's resnet{depth} could not be fetched ({error}); give a file with them"
        ) from error


_Module = TypeVar("_Module", bound=nn.Module)


class FrozenBatchNorm2d(nn.BatchNorm2d):
    """Batch normalisation with fixed running statistics; weight and bias are trained.

    Example:
        >>> FrozenBatchNorm2d(4).train().training
        False
    """

    def train(self, mode: bool = True) -> FrozenBatchNorm2d:
        """Stay in evaluation mode."""
        return super().train(False)


def freeze_batch_norm(network: _Module) -> _Module:
    """Freeze the running statistics of all batch normalisation in a network, which is changed in place and returned.

    Parameters and buffers stay the same tensors under the same names, so optimisers and state dicts remain valid.

    Example:
        >>> network = freeze_batch_norm(nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))).train()
        >>> network[1].training
        False
    """
    for parent in list(network.modules()):
        for name, child in parent.named_children():
            if isinstance(child, _BatchNorm) and not isinstance(child, FrozenBatchNorm2d):
                frozen = FrozenBatchNorm2d(
                    child.num_features, eps=child.eps, momentum=child.momentum, affine=child.affine
                )
                for key, tensor in (*child.named_parameters(), *child.named_buffers()):
                    setattr(frozen, key, tensor)
                setattr(parent, name, frozen.eval())
    return network
