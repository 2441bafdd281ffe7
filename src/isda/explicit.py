"""ExplicitLoss: cross-entropy over M sampled features, eq. (5); ISDALoss bounds its limit for M to infinity."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from isda._checks import check_integer
from isda.attach import logits_of
from isda.covariance.base import outside_autocast
from isda.criterion import in_float32
from isda.loss import ISDALoss


class ExplicitLoss(ISDALoss):
    """Cross-entropy over M augmented features a^m ~ N(a, lambda Sigma_y) per sample, eq. (5): the paper's naive method.

    L = 1/N sum_i 1/M sum_m -log softmax(W a_i^m + b)[y_i], where W a^m + b = z + W (a^m - a). It is used as ISDALoss,
    with the same statistics and schedule. Draws come from torch's global generator.

    Args:
        num_classes: C.
        feature_dim: A.
        lambda_0: see ISDALoss.
        total_steps: see ISDALoss.
        samples: M.
        **settings: of ISDALoss; there is no bound.

    Example:
        >>> head = torch.nn.Linear(8, 3)
        >>> criterion = ExplicitLoss(num_classes=3, feature_dim=8, lambda_0=0.5, total_steps=100, samples=5)
        >>> features, targets = torch.randn(4, 8), torch.tensor([0, 2, 1, 2])
        >>> loss = criterion(head(features), targets, features=features, weight=head.weight)
        >>> criterion.strength
        0.005
    """

    def __init__(
        self,
        num_classes: int,
        feature_dim: int,
        lambda_0: float = 0.5,
        total_steps: int | None = None,
        *,
        samples: int = 5,
        **settings: Any,
    ) -> None:
        if not settings.keys().isdisjoint({"bound", "max_ratio"}):
            raise ValueError("ExplicitLoss has no bound and no max_ratio")
        super().__init__(num_classes, feature_dim, lambda_0, total_steps, **settings)
        self.samples = check_integer("samples", samples)

    def augmented(
        self,
        logits: Tensor,
        labels: Tensor,
        counted: Tensor | None,
        grid: torch.Size,
        weight: Tensor,
        strength: float | Tensor,
    ) -> Tensor:
        """(N, M, C) logits of the augmented features."""
        if logits.ndim > 2:
            raise ValueError(f"explicit augmentation is for logits (N, C), got {tuple(logits.shape)}")
        safe = labels if counted is None else torch.where(counted, labels, 0)
        directions = self.covariance.sample(safe, self.samples)
        return logits.unsqueeze(1) + strength**0.5 * (directions @ weight.t())

    def expected_loss(self, augmented: Tensor, logits: Tensor, target: Tensor) -> Tensor:
        """The mean cross-entropy of the draws."""
        losses = self.cross_entropy(augmented.flatten(0, 1), target.repeat_interleave(self.samples, 0))
        if self.reduction == "none":
            return losses.view(-1, self.samples).mean(1)
        return losses / self.samples if self.reduction == "sum" else losses

    def consistency(
        self, logits: Tensor, *, weight: Tensor | None = None, strength: float | Tensor | None = None
    ) -> Tensor:
        """Section 5: the mean over draws of -sum_k p_k log p~_k, with the prediction p held constant.

        Args:
            logits: (N, C) of unlabelled samples.
            weight: (C, A), that of the attached classifier by default.
            strength: lambda; the current one by default.
        """
        logits = logits_of(logits)
        weight, lam = self.checked_weight(logits, weight), self.strength_of_call(strength)
        with outside_autocast(logits.device):
            logits = in_float32(logits)
            prediction = logits.detach().softmax(1)
            labels = prediction.argmax(1)
            augmented = self.augmented(logits, labels, None, logits.shape[2:], weight, lam)
            losses = -(prediction.unsqueeze(1) * F.log_softmax(augmented, 2)).sum(2).mean(1)
        if self.reduction == "none":
            return losses
        return losses.sum() if self.reduction == "sum" else losses.mean()
