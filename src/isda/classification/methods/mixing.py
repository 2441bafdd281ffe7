"""Mixing a batch with a permutation of itself: the shares, the partners, and distributions as targets.

Everything is drawn on the host, from the generator that the trainer seeds: no step waits for a device.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from isda.classification.batches import Batch
from isda.classification.config import Config
from isda.classification.methods.on_top import OnTop
from isda.devices import send
from isda.networks import Network

__all__ = ["Mixing", "Mixture", "draw_share", "mix", "mixed_targets"]


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


@dataclass(frozen=True)
class Mixture:
    """How a batch is mixed: with which of its samples, and how much of each stays."""

    partners: Tensor
    """(N,) a permutation."""
    share: float
    """lambda."""


class Mixing(OnTop):
    """A method that mixes every batch with itself, by one share per batch, as published. alpha = 0 mixes nothing.

    Each process mixes its own part of a batch. With ``+isda`` the targets are distributions for ISDA as well: a mixed
    sample has the covariance of its larger share, and feeds the statistics of that class.
    """

    def __init__(self, options: Any, network: Network, config: Config) -> None:
        super().__init__(options, network, config)
        if not 0 <= options.alpha < math.inf:
            raise ValueError(f"alpha must be a finite number >= 0, got {options.alpha}")
        self.alpha, self.num_classes = options.alpha, len(config.classes)

    @abstractmethod
    def mixed(self, batch: Batch, mixture: Mixture) -> tuple[Batch, float]:
        """The batch with mixed images, and the share that its own labels keep."""

    def prepare(self, batch: Batch) -> Batch:
        """The mixed batch, with distributions as targets; the batch itself where all of it stays."""
        share = draw_share(self.alpha)
        if share == 1:
            return batch
        partners = send(torch.randperm(len(batch.targets)), batch.targets.device)
        mixed, kept = self.mixed(batch, Mixture(partners, share))
        if kept == 1:
            return batch
        targets = mixed_targets(batch.targets, partners, kept, self.num_classes, batch.images.dtype)
        return replace(mixed, targets=targets)
