"""The published formulation, written from the equations as lean as it can be without changing its shape.

Statistics spread the features over an N x C x A tensor (eqs. (1) to (3)); the loss builds the N x C x A weight
differences of Prop. 1 and gathers one covariance per sample. This is what the benchmarks compare against.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


class DenseISDA:
    """ISDA with dense intermediates, full or diagonal covariance."""

    def __init__(self, num_classes: int, feature_dim: int, covariance: str) -> None:
        self.full = covariance == "full"
        matrix = (feature_dim, feature_dim) if self.full else (feature_dim,)
        self.covariance = torch.zeros(num_classes, *matrix)
        self.mean = torch.zeros(num_classes, feature_dim)
        self.count = torch.zeros(num_classes)

    @torch.no_grad()
    def update(self, features: Tensor, targets: Tensor) -> None:
        """Eqs. (ave), (cv), (sum)."""
        member = F.one_hot(targets, len(self.count)).to(features.dtype)
        spread = features.unsqueeze(1) * member.unsqueeze(2)
        m, n = member.sum(0), self.count
        mean = spread.sum(0) / m.clamp_min(1).unsqueeze(1)
        centred = spread.sub_(mean * member.unsqueeze(2))
        share = m / (n + m).clamp_min(1)
        distance = self.mean - mean
        weight = share.view(-1, *[1] * (self.covariance.ndim - 1))
        if self.full:
            batch = torch.bmm(centred.permute(1, 2, 0), centred.permute(1, 0, 2)) / m.clamp_min(1).view(-1, 1, 1)
            between = distance.unsqueeze(2) * distance.unsqueeze(1)
        else:
            batch = centred.square_().sum(0) / m.clamp_min(1).unsqueeze(1)
            between = distance.square()
        self.covariance = self.covariance * (1 - weight) + batch * weight + between * (weight * (1 - weight))
        self.mean = self.mean - distance * share.unsqueeze(1)
        self.count = n + m

    def loss(self, logits: Tensor, targets: Tensor, features: Tensor, weight: Tensor, strength: float) -> Tensor:
        """Update the statistics, then Prop. 1."""
        self.update(features.detach(), targets)
        difference = weight.unsqueeze(0) - weight[targets].unsqueeze(1)
        if self.full:
            variance = (torch.bmm(difference, self.covariance[targets]) * difference).sum(2)
        else:
            variance = (difference.square() * self.covariance[targets].unsqueeze(1)).sum(2)
        return F.cross_entropy(logits + strength / 2 * variance, targets)
