"""What a method of segmentation is: a loss per pixel, for the classifier and for the auxiliary one."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from isda.data.segmentation import IGNORED
from isda.distributed import add_up, world_size
from isda.engine.method import Outcome
from isda.engine.named_method import NamedMethod
from isda.networks.segmentation import SegmentationNetwork
from isda.segmentation.batches import Batch
from isda.segmentation.config import Config
from isda.segmentation.methods.hard_pixels import hard_pixels

__all__ = ["Head", "PixelOptions", "SegmentationMethod", "mean_over_pixels"]


class Head(NamedTuple):
    """What one classifier made of a batch, at the resolution of the features."""

    name: str
    """ "main" or "auxiliary"."""
    logits: Tensor
    """(N, C, h, w)."""
    features: Tensor
    """(N, A, h, w): what the classifier reads."""
    weight: Tensor
    """(C, A, 1, 1) of the classifier."""


@dataclass(frozen=True, kw_only=True)
class PixelOptions:
    """What may follow the colon of every method."""

    ohem: bool = False
    """Online hard example mining (Shrivastava et al., 2016): only the pixels that the network does not know yet."""
    ohem_threshold: float = 0.7
    """They are those with a probability of their class up to this one ..."""
    ohem_kept: int = 100_000
    """... and in any case the worst so many of a batch."""

    def __post_init__(self) -> None:
        if not 0 < self.ohem_threshold <= 1:
            raise ValueError(f"ohem_threshold must be more than 0 and at most 1, got {self.ohem_threshold}")
        if self.ohem_kept < 1:
            raise ValueError(f"ohem_kept must be at least 1, got {self.ohem_kept}")
        if self.ohem and getattr(self, "label_smoothing", None):
            raise ValueError("ohem must not be combined with label_smoothing, which hides a pixel's probability")


class SegmentationMethod(NamedMethod):
    """A method of `isda segment train`, by its name on the command line; a subclass says what a pixel's loss is.

    A subclass is made with ``(options, network, config)``; its Options are a `PixelOptions`. The loss of a step is the
    mean over all pixels of all processes that count, and ``auxiliary_weight`` times that of the auxiliary classifier.
    """

    Options = PixelOptions

    def __init__(self, options: PixelOptions, network: SegmentationNetwork, config: Config) -> None:
        super().__init__()
        self.options, self.auxiliary_weight = options, config.auxiliary_weight
        # In a tuple: the network's parameters are not the method's.
        self._classifiers = network.classifier, network.auxiliary_classifier

    @abstractmethod
    def pixel_losses(self, head: Head, targets: Tensor) -> Tensor:
        """(N, H, W) the loss of each pixel at the resolution of the targets (N, H, W); any value where ignored."""

    def forward(self, network: nn.Module, batch: Batch) -> Outcome:
        """A term for each classifier."""
        outputs = network(batch.images, dense=True)
        main, auxiliary = self._classifiers
        heads = [Head("main", outputs.logits, outputs.features, main.weight)]
        if auxiliary is not None:
            heads.append(Head("auxiliary", outputs.auxiliary_logits, outputs.auxiliary_features, auxiliary.weight))
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
    """The mean over the pixels that count, such that the average over processes is the mean over all of their pixels.

    0 where no pixel counts.

    Args:
        losses: (N, H, W).
        counted: (N, H, W) which count.
    """
    total = add_up(counted.sum())
    return torch.where(counted, losses, 0).sum() * world_size() / total.clamp(min=1)
