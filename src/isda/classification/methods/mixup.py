"""Mixup (Zhang et al., ICLR 2018): convex combinations of images, and of their labels."""

from __future__ import annotations

from dataclasses import dataclass, replace

from isda.classification.batches import Batch
from isda.classification.methods.cross_entropy import CrossEntropy
from isda.classification.methods.isda import ISDA
from isda.classification.methods.mixing import Mixing, Mixture, mix
from isda.classification.methods.on_top import both_options

__all__ = ["Mixup", "MixupISDA", "MixupOptions"]


@dataclass(frozen=True, kw_only=True)
class MixupOptions:
    """What may follow ``mixup:``, beside the options of the loss."""

    alpha: float = 1.0
    """The share of an image is drawn from Beta(alpha, alpha); 1 is the authors' for CIFAR, 0.2 for ImageNet."""


class Mixup(Mixing):
    """x = lambda x_i + (1 - lambda) x_j and the same of their labels, with lambda ~ Beta(alpha, alpha)."""

    name = "mixup"
    Options = both_options(MixupOptions, CrossEntropy)
    grid = {"alpha": (0.2, 0.5, 1.0, 2.0)}  # noqa: RUF012, a class variable of the base

    def mixed(self, batch: Batch, mixture: Mixture) -> tuple[Batch, float]:
        """Whole images."""
        return replace(batch, images=mix(batch.images, mixture.partners, mixture.share)), mixture.share


class MixupISDA(Mixup):
    """ISDA on mixed images."""

    name = "mixup+isda"
    base_type = ISDA
    Options = both_options(MixupOptions, ISDA)
