"""ISDALoss: cross-entropy over infinitely many semantically augmented features, as a drop-in criterion."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from isda._utils.choices import check_choice
from isda._utils.devices import outside_autocast
from isda.attach.autograd_compat import outside_graphs, refuse_transforms
from isda.covariance import CovarianceModel
from isda.functional.bounds import augmented_logits, jensen_consistency, tilted_consistency, tilted_variance
from isda.functional.grouping import Groups
from isda.functional.tilt import TILT_STEPS
from isda.losses.base import SemanticLoss
from isda.losses.inputs import LossInputs, check_batch, check_tilt_steps
from isda.losses.long_tail import MeanShift, Offset
from isda.losses.schedule import StrengthMonitor
from isda.losses.targets import as_rows, bound_loss, is_soft, logits_of, resize_logits, resize_rows

_BOUNDS = ("jensen", "tilted")


class ISDALoss(SemanticLoss):
    """Upper bound of the expected cross-entropy over features a~ ~ N(a, lambda Sigma_y), Props. 1 and 2.

    In training mode a call updates the class covariances with the features, evaluates the bound at the current strength
    lambda = lambda_0 * t / T, and advances t. In eval mode, and for lambda = 0, it is nn.CrossEntropyLoss to the bit.

    Args:
        num_classes: C.
        feature_dim: A, the inputs of the classifier.
        lambda_0: strength at the end of training; 0.5 on CIFAR, 1 to 10 on ImageNet in the paper.
        total_steps: number of optimiser steps T over which the strength grows; None for a constant lambda_0.
        covariance: full, diagonal, low_rank, shared, within (one matrix, pooled within the classes), shrunk (full,
            shrunk towards within), identity, learned, auto (full up to 1 GiB of state, else low_rank), or a
            CovarianceModel.
        bound: "jensen", as published, or "tilted", never looser.
        ignore_index: label of samples or pixels that do not count.
        reduction: mean, sum or none.
        label_smoothing: as in nn.CrossEntropyLoss.
        class_weight: (C,) weights of the classes, as ``weight`` in nn.CrossEntropyLoss.
        offset: what is added to the margins in training, such as LogitAdjustment or LDAMMargins (docs/longtail.md).
        shift: what moves the means of the augmented features, such as ConfusionShift.
        tilt_steps: Newton steps of the search for the tilted bound; 0 leaves it at the published one.
        align_corners: how logits are upsampled when labels are finer than features (F.interpolate).
        validate: check labels and features for values that would spoil the statistics.
        device: where the statistics live.
        dtype: their type, at least float32.
        **covariance_settings: for the covariance model: rank, decay, sync, process_group, ...

    Shape:
        - logits (N, C) or (N, C, H, W); targets (N,) or (N, H', W'), or distributions of the shape of the logits;
          features (N, A) or (N, A, H, W); weight (C, A) or a 1x1 convolution's (C, A, 1, 1).

    Example:
        >>> head = torch.nn.Linear(8, 3)
        >>> criterion = ISDALoss(num_classes=3, feature_dim=8, lambda_0=0.5, total_steps=100)
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
        covariance: str | CovarianceModel = "full",
        bound: str = "jensen",
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        class_weight: Tensor | None = None,
        offset: Offset | None = None,
        shift: MeanShift | None = None,
        tilt_steps: int = TILT_STEPS,
        align_corners: bool = False,
        validate: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **covariance_settings: Any,
    ) -> None:
        check_choice("bound", bound, _BOUNDS)
        check_tilt_steps(tilt_steps)
        super().__init__(
            num_classes,
            feature_dim,
            lambda_0,
            total_steps,
            covariance=covariance,
            ignore_index=ignore_index,
            reduction=reduction,
            label_smoothing=label_smoothing,
            class_weight=class_weight,
            offset=offset,
            shift=shift,
            align_corners=align_corners,
            validate=validate,
            device=device,
            dtype=dtype,
            **covariance_settings,
        )
        self.bound, self.tilt_steps = bound, tilt_steps
        self._monitor = StrengthMonitor(self.schedule.lambda_0)

    @outside_graphs
    def consistency(
        self, logits: Tensor, *, weight: Tensor | None = None, strength: float | None = None, bound: str | None = None
    ) -> Tensor:
        """Consistency bound for unlabelled samples, Prop. 2; needs no labels and changes no state.

        An upper bound of E[-sum_k p_k log p~_k], with the prediction p held constant and the covariance of its class.
        The entropy of p, a constant, is the difference to the expected KL divergence.

        Args:
            logits: (N, C) or (N, C, H, W).
            weight: (C, A) weights of the classifier; recorded by themselves after ``attach``.
            strength: lambda; the current one of the schedule by default.
            bound: "jensen" or "tilted"; the criterion's own by default.
        """
        bound = self.bound if bound is None else check_choice("bound", bound, _BOUNDS)

        def loss_of(rows: Tensor, weight: Tensor, strength: float) -> Tensor:
            if bound == "tilted":
                narrow = self.covariance.as_statistics(rows)
                return tilted_consistency(narrow, weight, self.covariance, strength, self.tilt_steps).to(rows.dtype)
            return jensen_consistency(rows, weight, self.covariance, strength)

        return self._over_unlabelled(logits, weight, strength, loss_of)

    @outside_graphs
    def augmented_logits(
        self, logits: Tensor, targets: Tensor, *, weight: Tensor | None = None, strength: float | None = None
    ) -> Tensor:
        """Logits z_ij + lambda/2 (variance of margin j), for any other cross-entropy-like criterion; changes no state.

        What ``shift`` and ``offset`` add to the margins is in them, too. Rows whose target is ignored come back
        unchanged. With the tilted bound it is logsumexp(result) - z_y that is the bound, not the cross-entropy of the
        result: use "jensen" for criteria that take logits.

        Args:
            logits: (N, C) or (N, C, H, W).
            targets: (N,) or (N, H, W) class indices, or distributions of the shape of the logits.
            weight: (C, A) weights of the classifier; recorded by themselves after ``attach``.
            strength: lambda; the current one of the schedule by default.
        """
        refuse_transforms(self)
        logits = logits_of(logits)
        weight = self._weight_for(logits, weight)
        strength = self.schedule.chosen(strength)
        batch = check_batch(self, logits, targets, None, weight)
        groups = self._groups(batch)
        with outside_autocast(logits.device):
            return self._augment(self._with_terms(batch, groups, strength), groups, strength, mask=True)

    # -- how it is computed ------------------------------------------------------------------------------------------

    def _augmented_loss(self, batch: LossInputs, groups: Groups, strength: float) -> Tensor:
        # An ignored row adds nothing to the loss, but an ignored pixel is mixed with its neighbours.
        augmented = self._augment(batch, groups, strength, mask=batch.logits.ndim > 2)
        size = batch.targets.shape[2:] if is_soft(batch.targets) else batch.targets.shape[1:]
        augmented = resize_logits(augmented, size, self.align_corners)
        if self.bound == "jensen" and not is_soft(batch.targets) and not self.label_smoothing:
            return self._cross_entropy(augmented, batch.targets)
        plain = resize_logits(self._wide(batch.logits), size, self.align_corners)
        return bound_loss(
            augmented,
            plain,
            batch.targets,
            class_weight=self.class_weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )

    def _augment(self, batch: LossInputs, groups: Groups, strength: float, *, mask: bool) -> Tensor:
        """Logits plus half the scaled variances, at the resolution of the logits; none where ``mask`` and ignored."""
        logits = self._wide(batch.logits)
        weight = self.covariance.as_statistics(batch.weight)
        rows = self.covariance.as_statistics(as_rows(resize_logits(logits, batch.grid, self.align_corners)))
        if self.bound == "tilted":
            variance = tilted_variance(
                rows, groups.labels, groups.labels, weight, self.covariance, strength, self.tilt_steps
            )
        else:
            variance = self.covariance.row_margins(weight, groups)
        if batch.counts is not None and mask:
            variance = variance * batch.counts.unsqueeze(1)
        self._monitor.check(variance, rows, strength)
        variance = resize_rows(variance, batch.grid, logits, self.align_corners)
        return augmented_logits(logits, variance, strength)

    def extra_repr(self) -> str:
        """Show the settings in repr()."""
        return f"{super().extra_repr()}, bound={self.bound!r}"
