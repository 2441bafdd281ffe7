"""ExplicitLoss: cross-entropy over M sampled features per sample; ISDALoss bounds its limit for M to infinity."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from isda._utils import checks
from isda.attach.autograd_compat import outside_graphs
from isda.functional.grouping import Groups
from isda.functional.patches import Patches
from isda.functional.sampling import explicit_consistency, explicit_logits
from isda.losses.base import AugmentedLoss
from isda.losses.inputs import LossInputs
from isda.losses.semantic import SemanticLoss


class ExplicitLoss(SemanticLoss):
    """Cross-entropy over M augmented features a^m ~ N(a, lambda Sigma_y) per sample, eq. (5): the paper's naive method.

    It replaces ISDALoss: the same statistics, schedule, targets and attaching. Draws come from torch's global
    generator. Gradients reach the factors of a learned covariance through them (reparameterisation).

    Args:
        num_classes: C.
        feature_dim: A, the inputs of the classifier.
        lambda_0: strength at the end of training.
        total_steps: number of optimiser steps T over which the strength grows, see ISDALoss.
        samples: M; 0 for plain cross-entropy.
        **settings: those of ISDALoss, but for the bound's.

    Shape:
        - logits (N, C); targets (N,), or distributions (N, C); features (N, A); weight (C, A).

    Example:
        >>> import torch
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
        checks.check_integer("samples", samples)
        super().__init__(num_classes, feature_dim, lambda_0, total_steps, **settings)
        self.samples = int(samples)

    @outside_graphs
    def consistency(self, logits: Tensor, *, weight: Tensor | None = None, strength: float | None = None) -> Tensor:
        """Consistency of unlabelled samples over M draws, section 5; needs no labels and changes no state.

        The mean over draws of -sum_k p_k log p~_k, with the prediction p held constant and the covariance of its class.
        The entropy of p, a constant, is the difference to the mean KL divergence.

        Args:
            logits: (N, C).
            weight: (C, A) weights of the classifier; recorded by themselves after ``attach``.
            strength: lambda; the current one of the schedule by default.
        """
        _refuse_pixels(logits)

        def loss_of(rows: Tensor, weight: Tensor, strength: float) -> Tensor:
            # No draws are one draw that stays where it is.
            directions = self.covariance.sample(rows.detach().argmax(1), self.samples or 1)
            return explicit_consistency(rows, directions, weight, strength if self.samples else 0.0)

        return self._unlabelled_loss(logits, weight, strength, loss_of)

    def _check_inputs(
        self, logits: Tensor, targets: Tensor, features: Tensor | Patches | None, weight: Tensor
    ) -> LossInputs:
        _refuse_pixels(logits)
        return super()._check_inputs(logits, targets, features, weight)

    def _loss(self, inputs: LossInputs, groups: Groups, strength: float) -> Tensor:
        inputs = self._with_terms(inputs, groups, strength)
        return AugmentedLoss._loss(self, inputs, groups, strength if self.samples else 0.0)

    def _augmented_loss(self, inputs: LossInputs, groups: Groups, strength: float) -> Tensor:
        directions = self.covariance.sample(groups.labels, self.samples)
        weight = self.covariance.as_statistics(inputs.weight)
        logits = explicit_logits(self._wide(inputs.logits), directions, weight, strength)
        loss = self._plain_loss(logits.flatten(0, 1), inputs.targets.repeat_interleave(self.samples, 0))
        if self.reduction == "none":
            return loss.view(-1, self.samples).mean(1)
        return loss / self.samples if self.reduction == "sum" else loss

    def extra_repr(self) -> str:
        """Show the settings in repr()."""
        return f"{super().extra_repr()}, samples={self.samples}"


def _refuse_pixels(logits: Tensor) -> None:
    if logits.ndim > 2:
        raise ValueError(f"logits must have shape (N, C) for explicit augmentation, got {checks.shape_of(logits)}")
