"""ISDABCELoss: expected binary cross-entropy over augmented features, for samples with several labels."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from isda._checks import check_class_weight, describe, on_host
from isda.attach import logits_of
from isda.covariance.base import Groups, outside_autocast
from isda.criterion import AugmentedLoss, in_float32
from isda.loss import rows_of


def binary_bound(
    logits: Tensor, targets: Tensor, variance: Tensor, strength: float | Tensor, pos_weight: Tensor | None = None
) -> Tensor:
    """The sum p q log(1 + exp(-z + lambda/2 v)) + (1 - q) log(1 + exp(z + lambda/2 v)) of each label, v = w' Sigma w.

    By Jensen's inequality E[log(1 + exp(-s z~))] <= log(1 + exp(-s z + lambda/2 v)) for s = 1 (present) or -1.

    Args:
        logits: z, of any shape.
        targets: q in 0..1, of the same shape.
        variance: v, of a shape that is broadcast to theirs.
        strength: lambda.
        pos_weight: p, what a present label weighs; likewise.

    Example:
        >>> binary_bound(torch.zeros(1), torch.ones(1), torch.tensor([2.0]), strength=1.0)  # log(1 + e)
        tensor([1.3133])
    """
    added = strength / 2 * variance
    present = targets if pos_weight is None else pos_weight * targets
    return present * F.softplus(added - logits, threshold=40) + (1 - targets) * F.softplus(added + logits, threshold=40)


class ISDABCELoss(AugmentedLoss):
    """Upper bound of the expected binary cross-entropy of every label over features a~ ~ N(a, lambda Sigma).

    A sample has several labels, so one covariance Sigma is pooled over all samples. Strength, statistics and attaching
    are those of ISDALoss. In eval mode, and for lambda_0 = 0, it is nn.BCEWithLogitsLoss to the bit. Not in the paper.

    Args:
        num_labels: K.
        feature_dim: A.
        lambda_0: strength at the end of training.
        total_steps: T, the number of training forwards over which the strength grows.
        covariance: full, diagonal, low_rank, identity or learned.
        ignore_value: the target of missing labels, -1 or NaN for example; a mean is over the others.
        pos_weight: (K,) as in nn.BCEWithLogitsLoss.
        class_weight: (K,) as ``weight`` in nn.BCEWithLogitsLoss.
        **settings: reduction, align_corners, device, dtype, and those of the covariance.

    Shape:
        - logits (N, K) or (N, K, H, W); targets in 0..1 of the same shape; features (N, A) or (N, A, H, W);
          weight (K, A).

    Example:
        >>> head = torch.nn.Linear(8, 3)
        >>> criterion = ISDABCELoss(num_labels=3, feature_dim=8, lambda_0=0.5, total_steps=100)
        >>> features, targets = torch.randn(2, 8), torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
        >>> loss = criterion(head(features), targets, features=features, weight=head.weight)
        >>> criterion.strength
        0.005
    """

    pos_weight: Tensor | None

    def __init__(
        self,
        num_labels: int,
        feature_dim: int,
        lambda_0: float = 0.5,
        total_steps: int | None = None,
        *,
        covariance: str | Any = "full",
        ignore_value: float | None = None,
        pos_weight: Tensor | None = None,
        class_weight: Tensor | None = None,
        **settings: Any,
    ) -> None:
        check_class_weight("pos_weight", pos_weight, num_labels)
        super().__init__(
            num_labels,
            feature_dim,
            lambda_0,
            total_steps,
            covariance=covariance,
            matrices=1,
            class_weight=class_weight,
            **settings,
        )
        self.num_labels, self.ignore_value = self.num_classes, ignore_value
        self.register_buffer("pos_weight", None if pos_weight is None else pos_weight.to(self.step.device))

    def forward(
        self,
        input: Any,
        target: Tensor,
        *,
        features: Tensor | None = None,
        weight: Tensor | None = None,
        strength: float | Tensor | None = None,
    ) -> Tensor:
        """The loss of logits and targets of the same shape; the other arguments are those of ISDALoss."""
        output = logits_of(input)
        found = self.inputs(output, features, weight) if self.trains(strength) else None
        known = self.known_labels(output, target)
        targets = target.to(output.dtype) if known is None else torch.where(known, target, 0).to(output.dtype)
        if found is None:
            return self.binary_cross_entropy(output, targets, known)
        features, weight, learns = found
        weight = self.checked_weight(output, weight)
        lam = self.strength_of_call(strength)
        rows = rows_of(features)
        if learns:
            self.learn(features, rows, torch.zeros(len(rows), dtype=torch.int64, device=rows.device), None)
        with outside_autocast(output.device):
            logits = in_float32(output)
            pos_weight = None if self.pos_weight is None else self.along(self.pos_weight, logits)
            variance = self.variance(weight, logits)
            self.margin_variance = variance.detach().mean()
            losses = binary_bound(logits, targets.to(logits.dtype), variance, lam, pos_weight)
            if self.class_weight is not None:
                losses = losses * self.along(self.class_weight, logits)
            loss = self.reduced(losses, known)
            penalty = self.covariance.penalty()
        self.advance(strength)
        return loss if penalty is None else loss + penalty

    def consistency(self, logits: Tensor, *, weight: Tensor | None = None, strength: float | None = None) -> Tensor:
        """The bound of unlabelled samples with their own predictions, held constant, as targets; changes no state.

        Args:
            logits: (N, K) or (N, K, H, W).
            weight: (K, A), that of the attached classifier by default.
            strength: lambda; the current one by default.
        """
        logits = logits_of(logits)
        weight, lam = self.checked_weight(logits, weight), self.strength_of_call(strength)
        with outside_autocast(logits.device):
            logits = in_float32(logits)
            losses = binary_bound(logits, logits.detach().sigmoid(), self.variance(weight, logits), lam)
        return self.reduced(losses, None)

    # -- parts of a call ---------------------------------------------------------------------------------------------

    def variance(self, weight: Tensor, logits: Tensor) -> Tensor:
        """The variance w' Sigma w of every logit: (K, 1, ...), the same for all samples."""
        pooled = Groups.equal(torch.zeros(1, dtype=torch.int64, device=weight.device), len(weight))
        return self.along((self.covariance.product(weight, pooled) * weight).sum(1).clamp(min=0), logits)

    def known_labels(self, logits: Tensor, target: Tensor) -> Tensor | None:
        """Which labels are not missing; None for all. Labels outside 0..1 raise, on the host."""
        if not isinstance(target, Tensor) or target.shape != logits.shape:
            raise ValueError(f"targets must have the shape of logits, {tuple(logits.shape)}, got {describe(target)}")
        known = None
        if self.ignore_value is not None:
            known = ~target.isnan() if math.isnan(self.ignore_value) else target != self.ignore_value
        if on_host(target):
            inside = (target >= 0) & (target <= 1)
            outside = ~inside if known is None else ~inside & known
            if outside.any():
                value, count = float(target[outside][0]), int(outside.sum())
                raise ValueError(f"targets must lie in 0..1, got {value:g} ({count} of {target.numel()} are outside)")
        return known

    def binary_cross_entropy(self, logits: Tensor, targets: Tensor, known: Tensor | None) -> Tensor:
        """What nn.BCEWithLogitsLoss gives for the labels that are known."""
        losses = F.binary_cross_entropy_with_logits(
            logits,
            targets,
            None if self.class_weight is None else self.along(self.class_weight, logits),
            pos_weight=None if self.pos_weight is None else self.along(self.pos_weight, logits),
            reduction=self.reduction if known is None else "none",
        )
        return losses if known is None else self.reduced(losses, known)

    def along(self, of_labels: Tensor, logits: Tensor) -> Tensor:
        """Numbers (K,) of the labels, to be broadcast along the second dimension of the logits."""
        return of_labels.to(logits.dtype).view(-1, *[1] * (logits.ndim - 2))

    def reduced(self, losses: Tensor, known: Tensor | None) -> Tensor:
        """The losses of known labels, reduced."""
        if known is not None:
            losses = torch.where(known, losses, 0)
        if self.reduction == "mean":
            return losses.mean() if known is None else losses.sum() / known.sum().clamp(min=1)
        return losses.sum() if self.reduction == "sum" else losses
