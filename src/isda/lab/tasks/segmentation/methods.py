"""Segmentation methods: pixel-wise cross-entropy and ISDA, with hard example mining."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isda import ISDALoss
from isda.lab.choices import expect_type
from isda.lab.data.segmentation import IGNORED
from isda.lab.distributed import all_reduce_sum, world_size
from isda.lab.engine.method import NamedMethod, Outcome, find_method_class
from isda.lab.methods.options import DIVERGENCE_HINT, ISDAOptions
from isda.lab.networks.segmentation import SegmentationNetwork
from isda.lab.tasks.segmentation.data import SegmentationBatch
from isda.lab.tasks.segmentation.settings import SegmentationConfig


def hard_pixels(losses: Tensor, counted: Tensor, threshold: float, kept: int) -> Tensor:
    """The pixels whose probability exp(-loss) is at most ``threshold``, and in any case the ``kept`` worst.

    Args:
        losses: (N, H, W) cross-entropy of each pixel, or a bound of it.
        counted: (N, H, W) False for ignored pixels.
        threshold: largest probability of a hard pixel.
        kept: the least number of pixels; all if there are fewer.

    Example:
        >>> losses = torch.tensor([[[0.1, 0.2, 2.0, 9.0]]])
        >>> counted = torch.tensor([[[True, True, True, False]]])
        >>> hard_pixels(losses, counted, threshold=0.5, kept=1), hard_pixels(losses, counted, threshold=0.5, kept=2)
        (tensor([[[False, False,  True, False]]]), tensor([[[False,  True,  True, False]]]))
    """
    bound = torch.full_like(losses[0, 0, 0], -math.log(threshold))
    if kept < losses.numel():
        # Ignored pixels rank as the easiest: no count of the others is transferred to the host.
        ranked = losses.masked_fill(~counted, -math.inf).flatten()
        bound = torch.minimum(bound, ranked.kthvalue(len(ranked) - kept + 1).values)
    else:
        bound = torch.full_like(bound, -math.inf)
    return counted & (losses >= bound)


class HeadOutputs(NamedTuple):
    """The outputs of one classifier, at the resolution of the features."""

    name: str
    """ "main" or "auxiliary"."""
    logits: Tensor
    """(N, C, h, w)."""
    features: Tensor
    """(N, A, h, w), the input of the classifier."""
    weight: Tensor
    """(C, A, 1, 1) of the classifier."""


@dataclass(frozen=True, kw_only=True)
class PixelOptions:
    """What may follow the colon of every method."""

    ohem: bool = False
    """Online hard example mining (Shrivastava et al., 2016): the loss of hard pixels only."""
    ohem_threshold: float = 0.7
    """Largest probability of the class of a hard pixel."""
    ohem_kept: int = 100_000
    """The least number of pixels of a batch, the worst ones."""

    def __post_init__(self) -> None:
        if not 0 < self.ohem_threshold <= 1:
            raise ValueError(f"ohem_threshold must be more than 0 and at most 1, got {self.ohem_threshold}")
        if self.ohem_kept < 1:
            raise ValueError(f"ohem_kept must be at least 1, got {self.ohem_kept}")
        if self.ohem and getattr(self, "label_smoothing", None):
            raise ValueError("ohem must not be combined with label_smoothing, which hides a pixel's probability")


class SegmentationMethod(NamedMethod):
    """A method of `isda segment train`, by its name on the command line; a subclass defines the loss of a pixel.

    A subclass is made with ``(options, network, config)``; its Options are a `PixelOptions`. The loss of a step is the
    mean over all pixels of all processes that count, and ``auxiliary_weight`` times that of the auxiliary classifier.
    """

    Options = PixelOptions

    def __init__(self, options: PixelOptions, network: SegmentationNetwork, config: SegmentationConfig) -> None:
        super().__init__()
        self.options, self.auxiliary_weight = options, config.auxiliary_weight
        # In a tuple: the network's parameters are not the method's.
        self._classifiers = network.classifier, network.auxiliary_classifier

    @abstractmethod
    def pixel_losses(self, head: HeadOutputs, targets: Tensor) -> Tensor:
        """(N, H, W) the loss of each pixel at the resolution of the targets (N, H, W); any value for ignored pixels."""

    def forward(self, network: nn.Module, batch: SegmentationBatch) -> Outcome:
        """A term for each classifier."""
        outputs = network(batch.images, dense=True)
        main, auxiliary = self._classifiers
        heads = [HeadOutputs("main", outputs.logits, outputs.features, main.weight)]
        if auxiliary is not None:
            heads.append(
                HeadOutputs("auxiliary", outputs.auxiliary_logits, outputs.auxiliary_features, auxiliary.weight)
            )
        counted = batch.targets != IGNORED
        means = [self._mean(self.pixel_losses(head, batch.targets), counted) for head in heads]
        terms = {self.name: means[0]}
        if auxiliary is not None:
            terms["auxiliary"] = self.auxiliary_weight * means[1]
        return Outcome(terms, outputs.logits)

    def _mean(self, losses: Tensor, counted: Tensor) -> Tensor:
        if self.options.ohem:
            kept = -(-self.options.ohem_kept // world_size())
            counted = hard_pixels(losses.detach(), counted, self.options.ohem_threshold, kept)
        return mean_over_pixels(losses, counted)


def mean_over_pixels(losses: Tensor, counted: Tensor) -> Tensor:
    """The mean over the counted pixels, such that its average over processes is the mean over all of their pixels.

    0 if there are none.

    Args:
        losses: (N, H, W).
        counted: (N, H, W).
    """
    total = all_reduce_sum(counted.sum())
    return torch.where(counted, losses, 0).sum() * world_size() / total.clamp(min=1)


@dataclass(frozen=True, kw_only=True)
class PixelCrossEntropyOptions(PixelOptions):
    """What may follow ``cross-entropy:``."""

    label_smoothing: float = 0.0
    """Share of the target that is spread over all classes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.label_smoothing <= 1:
            raise ValueError(f"label_smoothing must lie in 0..1, got {self.label_smoothing}")


class PixelCrossEntropy(SegmentationMethod):
    """nn.CrossEntropyLoss of the upsampled logits."""

    name = "cross-entropy"
    Options = PixelCrossEntropyOptions
    options: PixelCrossEntropyOptions

    def pixel_losses(self, head: HeadOutputs, targets: Tensor) -> Tensor:
        """-log p of the pixel's class."""
        logits = F.interpolate(head.logits, targets.shape[1:], mode="bilinear", align_corners=True)
        smoothing = self.options.label_smoothing
        return F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="none", label_smoothing=smoothing)


@dataclass(frozen=True, kw_only=True)
class ISDAPixelOptions(ISDAOptions, PixelOptions):
    """What may follow ``isda:``; see ISDALoss and the covariance models."""

    def __post_init__(self) -> None:
        ISDAOptions.__post_init__(self)
        PixelOptions.__post_init__(self)


class PixelISDA(SegmentationMethod):
    """The bound of Prop. 1 for every pixel; its strength grows over the whole run.

    A pixel's statistics are those of the label nearest to it; the augmented logits are upsampled and compared with the
    labels at their resolution, so that lambda_0=0 is cross-entropy to the bit.
    """

    name = "isda"
    Options = ISDAPixelOptions
    families = ("isda",)
    divergence_hint = DIVERGENCE_HINT

    def __init__(self, options: ISDAPixelOptions, network: SegmentationNetwork, config: SegmentationConfig) -> None:
        super().__init__(options, network, config)
        heads = {"main": network.classifier, "auxiliary": network.auxiliary_classifier}
        self.criteria = nn.ModuleDict()
        for name, head in heads.items():
            if head is not None:
                settings = options.criterion_settings(head, config.total_steps)
                settings |= {"ignore_index": IGNORED, "reduction": "none", "align_corners": True}
                settings |= {"device": head.weight.device, "dtype": head.weight.dtype}
                self.criteria[name] = options.started(ISDALoss(head.out_channels, head.in_channels, **settings))

    def pixel_losses(self, head: HeadOutputs, targets: Tensor) -> Tensor:
        """The bound of the pixel's expected cross-entropy."""
        losses: Tensor = self.criteria[head.name](head.logits, targets, features=head.features, weight=head.weight)
        return losses

    def measures(self) -> dict[str, float]:
        """The strength lambda."""
        criterion = expect_type(self.criteria["main"], ISDALoss)
        return {"strength": criterion.strength}


class PixelISDATilted(PixelISDA):
    """ISDA with the tilted bound."""

    name = "isda-tilted"
    settled = {"bound": "tilted"}  # noqa: RUF012, a class variable of the base


METHODS: dict[str, type[SegmentationMethod]] = {
    method.name: method for method in (PixelCrossEntropy, PixelISDA, PixelISDATilted)
}


def find_method(name: str) -> type[SegmentationMethod]:
    """The method of a name: one of METHODS, or package.module.Class.

    Example:
        >>> find_method("isda").__name__
        'PixelISDA'
    """
    return find_method_class(name, METHODS, SegmentationMethod)  # type: ignore[type-abstract]
