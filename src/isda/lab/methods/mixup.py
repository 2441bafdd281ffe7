"""Mixup (Zhang et al., ICLR 2018). Shares and permutations are drawn on the host from the generator of the step."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from isda.lab.devices import send
from isda.lab.methods.base import CrossEntropy, CrossEntropyOptions
from isda.lab.networks import Network

if TYPE_CHECKING:
    from isda.lab.tasks.classification.settings import ClassificationConfig
    from isda.lab.tasks.common.data import ImageBatch


def draw_share(alpha: float) -> float:
    """The share lambda ~ Beta(alpha, alpha) of a sample that stays; 1 for alpha = 0.

    Example:
        >>> draw_share(0.0), 0 < draw_share(1.0) < 1
        (1.0, True)
    """
    if alpha == 0:
        return 1.0
    concentration = torch.tensor(alpha, dtype=torch.float64, device="cpu")
    return float(torch.distributions.Beta(concentration, concentration, validate_args=False).sample())


def mix(values: Tensor, partners: Tensor, share: float) -> Tensor:
    """Rows share * v_i + (1 - share) * v_partner(i) for the rows of values (N, ...) and partners (N,).

    Example:
        >>> mix(torch.tensor([0.0, 1.0]), torch.tensor([1, 0]), share=0.75)
        tensor([0.2500, 0.7500])
    """
    return share * values + (1 - share) * values.index_select(0, partners)


def mixed_targets(targets: Tensor, partners: Tensor, share: float, num_classes: int, dtype: torch.dtype) -> Tensor:
    """(N, C) distributions with ``share`` at the class y_i and the rest at the partner's, from class indices (N,).

    Example:
        >>> mixed_targets(torch.tensor([0, 2]), torch.tensor([1, 0]), 0.75, 3, torch.float32)
        tensor([[0.7500, 0.0000, 0.2500],
                [0.2500, 0.0000, 0.7500]])
    """
    own = torch.zeros(len(targets), num_classes, dtype=dtype, device=targets.device)
    return mix(own.scatter(1, targets.unsqueeze(1), 1.0), partners, share)


@dataclass(frozen=True, kw_only=True)
class MixupOptions(CrossEntropyOptions):
    """What may follow ``mixup:``, besides the options of the loss."""

    alpha: float = 1.0
    """The share of an image is drawn from Beta(alpha, alpha); 1 is the authors' for CIFAR, 0.2 for ImageNet."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.alpha < math.inf:
            raise ValueError(f"alpha must be a finite number >= 0, got {self.alpha}")


class Mixup(CrossEntropy):
    """x = lambda x_i + (1 - lambda) x_j and the same of their labels, with one lambda ~ Beta(alpha, alpha) per batch.

    Each process mixes its own part of a batch. With ``+isda`` the targets are distributions for ISDA too: a mixed
    sample has the covariance of its larger share, and updates the statistics of that class.
    """

    name = "mixup"
    Options = MixupOptions
    grid = {"alpha": (0.2, 0.5, 1.0, 2.0)}  # noqa: RUF012, a class variable of the base

    def __init__(self, options: Any, network: Network, config: ClassificationConfig) -> None:
        super().__init__(options, network, config)
        self.alpha, self.num_classes = options.alpha, len(config.classes)

    def prepare(self, batch: ImageBatch) -> ImageBatch:
        """The mixed batch, with distributions as targets; the batch itself if nothing is mixed."""
        share = draw_share(self.alpha)
        if share == 1:
            return batch
        partners = send(torch.randperm(len(batch.targets)), batch.targets.device)
        images = mix(batch.images, partners, share)
        targets = mixed_targets(batch.targets, partners, share, self.num_classes, batch.images.dtype)
        return replace(batch, images=images, targets=targets)
