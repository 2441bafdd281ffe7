"""What every segmentation network is: a backbone, a head that makes features, and a 1x1 classifier of each position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, overload

from torch import Tensor, nn

from isda.errors import of_type
from isda.networks.segmentation.backbone import DilatedResNet
from isda.networks.segmentation.resizing import resize

__all__ = ["DenseOutputs", "SegmentationNetwork"]


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
    """A backbone with a head, and beside it an auxiliary head on the backbone's last stage but one.

    The classifiers read exactly the features that :meth:`outputs` shows: dropout comes before.

    Args:
        backbone: maps images to two maps.
        head: maps the second to features (N, feature_dim, h, w).
        feature_dim: A.
        num_classes: C.
        auxiliary_head: maps the first to features, or None.
        auxiliary_dim: their number.

    Example:
        >>> import torch
        >>> from isda.networks import segmentation
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
        """The last layer, under the name that timm gives this question."""
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

        That one is for wrappers, such as DistributedDataParallel, which see nothing but calls of the network.
        """
        if dense:
            return self.outputs(images)
        self._check(images)
        return resize(self.classifier(self.head(self.backbone(images)[1])), images.shape[2:])

    def _check(self, images: Tensor) -> None:
        if images.ndim != 4 or images.shape[1] != 3:
            raise ValueError(f"images must have shape (N, 3, H, W), got {tuple(images.shape)}")
        # Batch normalisation that is frozen, or shared by processes, manages with one image.
        if len(images) == 1 and any(isinstance(one, nn.BatchNorm2d) and one.training for one in self.head.modules()):
            raise ValueError(
                "images must hold at least 2 images per process in training, got 1: each is pooled to one position, of "
                "which batch normalisation needs several; freeze_batch_norm or torch.nn.SyncBatchNorm helps"
            )


def _classifier(feature_dim: int, num_classes: int) -> nn.Conv2d:
    classifier = nn.Conv2d(feature_dim, num_classes, 1)
    nn.init.zeros_(of_type(classifier.bias, nn.Parameter))
    return classifier
