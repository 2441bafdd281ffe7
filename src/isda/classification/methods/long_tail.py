"""What methods for long tails share: ISDA's criterion with other providers, and weights that may come in late.

Without ``+isda`` the strength is 0: what is left of the criterion is cross-entropy with offsets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from isda.classification.batches import Batch
from isda.classification.class_sizes import counts_for
from isda.classification.config import Config
from isda.classification.methods.on_isda import AlsoOnISDA
from isda.engine.method import Outcome
from isda.errors import of_type
from isda.functional.long_tail import class_balanced_weights, class_counts
from isda.losses import ISDALoss
from isda.losses.long_tail import Offset
from isda.networks import Network

__all__ = ["DeferredOptions", "LongTailMethod"]


@dataclass(frozen=True, kw_only=True)
class DeferredOptions:
    """Options of class weights that come in late (deferred re-weighting, Cao et al., NeurIPS 2019)."""

    drw: bool = False
    """Weigh classes by one over their effective number of images in the last part of the run."""
    drw_start: float = 0.8
    """The share of the run before it."""
    beta: float = 0.9999
    """Of the effective numbers (1 - beta^n) / (1 - beta)."""


class LongTailMethod(AlsoOnISDA):
    """One term: the mean of w_y times the loss of a sample; the weights w have mean 1 over the training images.

    A weighted mean, as torch has it, would depend on how a batch is divided among processes.
    """

    Options: ClassVar[type] = DeferredOptions
    criterion: ISDALoss
    step: Tensor
    weights: Tensor

    def __init__(self, options: Any, network: Network, config: Config) -> None:
        super().__init__()
        head = network.classifier
        counts = counts_for(config, len(head.weight))
        place: dict[str, Any] = {"device": head.weight.device, "dtype": head.weight.dtype}
        start = self.weighted_from(options)
        self.start = None if start is None else round(start * config.total_steps)
        given: dict[str, Any] = {"offset": self.offset(options, counts), "reduction": "none"}
        if self.start is not None:
            given["class_weight"] = torch.ones(len(counts), **place)
        self.criterion = self.isda_criterion(options, network, config, **given, **place)
        # Where the step is counted and the weights are chosen, there is nothing for the host to wait for.
        self.register_buffer("step", torch.zeros((), dtype=torch.int64, device=head.weight.device))
        self.register_buffer("weights", _per_image(options, counts, **place), persistent=False)

    # -- what a method brings ----------------------------------------------------------------------------------------

    def offset(self, options: Any, counts: list[int]) -> Offset | None:
        """What is added to the margins."""
        return None

    def weighted_from(self, options: Any) -> float | None:
        """The share of a run after which classes are weighed; None for never."""
        if not 0 <= options.drw_start <= 1:
            raise ValueError(f"drw_start must lie in 0..1, got {options.drw_start}")
        return options.drw_start if options.drw else None

    def isda_criterion(self, options: Any, network: Network, config: Config, **given: Any) -> ISDALoss:
        """The criterion at strength 0: it needs no features, and is not attached."""
        num_classes, feature_dim = network.classifier.weight.shape
        return ISDALoss(num_classes, feature_dim, 0.0, covariance="identity", **given)

    # -- a step ------------------------------------------------------------------------------------------------------

    def forward(self, network: nn.Module, batch: Batch) -> Outcome:
        """One term: the weighted mean of the criterion."""
        if self.start is not None:
            class_weight = of_type(self.criterion.class_weight, Tensor)
            class_weight.copy_(torch.where(self.step >= self.start, self.weights, 1))
        logits = network(batch.images)
        loss = self.criterion(logits, batch.targets).mean()
        self.step.add_(1)
        return Outcome({self.term: loss}, logits)


def _per_image(options: Any, counts: list[int], **place: Any) -> Tensor:
    """(C,) weights of the classes with mean 1 over the training images, so that steps keep their size."""
    weights = class_balanced_weights(counts, options.beta)
    sizes = class_counts(counts)
    return (weights * (sizes.sum() / (sizes * weights).sum())).to(**place)
