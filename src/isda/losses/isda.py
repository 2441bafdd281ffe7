"""ISDALoss: cross-entropy over infinitely many semantically augmented features, as a drop-in criterion; and
SemanticLoss, the base of the losses for one class per sample.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from isda._utils import checks
from isda._utils.choices import check_choice
from isda._utils.devices import on_host, outside_autocast
from isda.attach.autograd_compat import outside_graphs, refuse_transforms
from isda.covariance import CovarianceModel
from isda.functional.bounds import augmented_logits, jensen_consistency, tilted_consistency, tilted_variance
from isda.functional.grouping import Groups
from isda.functional.patches import Patches
from isda.functional.tilt import TILT_STEPS
from isda.losses.base import AugmentedLoss
from isda.losses.inputs import LossInputs, check_features, check_weights
from isda.losses.long_tail import MeanShift, Offset, check_providers, margin_terms
from isda.losses.schedule import StrengthMonitor
from isda.losses.targets import (
    SoftTargetMonitor,
    as_maps,
    as_rows,
    bound_loss,
    check_targets,
    grid_of,
    is_soft,
    logits_of,
    reduce_losses,
    resize_labels,
    resize_logits,
    resize_rows,
)


class SemanticLoss(AugmentedLoss):
    """The expected cross-entropy over features a~ ~ N(a, lambda Sigma_y), which a subclass bounds or estimates.

    In training mode a call updates the class covariances with the features, evaluates the loss at the current strength
    lambda = lambda_0 * t / T, and advances t. In eval mode, and for lambda = 0, it is nn.CrossEntropyLoss to the bit.
    The arguments are those of ISDALoss.
    """

    def __init__(
        self,
        num_classes: int,
        feature_dim: int,
        lambda_0: float = 0.5,
        total_steps: int | None = None,
        *,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        class_weight: Tensor | None = None,
        offset: Offset | None = None,
        shift: MeanShift | None = None,
        align_corners: bool = False,
        device: torch.device | str | None = None,
        **settings: Any,
    ) -> None:
        if not 0 <= label_smoothing <= 1:
            raise ValueError(f"label_smoothing must lie in 0..1, got {label_smoothing!r}")
        if class_weight is not None:
            check_weights("class_weight", class_weight, num_classes)
            if not class_weight.is_meta and not bool((class_weight > 0).any()):
                raise ValueError("class_weight must be above 0 for at least one class, got zeros alone")
        super().__init__(
            num_classes, feature_dim, lambda_0, total_steps, class_weight=class_weight, device=device, **settings
        )
        check_providers(offset, shift, self.covariance)
        self.offset = None if offset is None else offset.to(device, self.covariance.dtype)
        self.shift = None if shift is None else shift.to(device)
        self.ignore_index, self.label_smoothing = ignore_index, float(label_smoothing)
        self.align_corners = align_corners
        self._soft_targets = SoftTargetMonitor()

    # -- the inputs --------------------------------------------------------------------------------------------------

    def _check_inputs(
        self, logits: Tensor, targets: Tensor, features: Tensor | Patches | None, weight: Tensor
    ) -> LossInputs:
        weight = self._check_classifier(logits, targets, features, weight)
        check_targets(logits, targets)
        grid = logits.shape[2:]
        if features is not None:
            check_features(logits, features, self.feature_dim)
            grid = grid_of(features)
            if is_soft(targets) and grid != logits.shape[2:]:
                raise ValueError(
                    "features must have the spatial size of targets given as distributions, "
                    f"{tuple(targets.shape[2:])}, got {tuple(grid)}"
                )
            features = as_rows(features)
        if is_soft(targets):
            classes = targets.argmax(1)
            if self.validate:
                self._soft_targets.check(targets)
                if not on_host(targets):
                    # A row that is not finite has no class: -1 keeps it out of the statistics and counts it as bad.
                    classes = classes.masked_fill(targets.sum(1).isfinite().logical_not(), -1)
            return LossInputs(logits, targets, weight, features, classes.flatten(), None, grid)
        targets = targets.long()
        all_valid = self._labels_are_valid(targets)
        labels = targets if logits.ndim == 2 else resize_labels(targets, grid).flatten()
        if all_valid:
            return LossInputs(logits, targets, weight, features, labels, None, grid)
        counts = labels != self.ignore_index
        if on_host(labels):
            labels = labels.masked_fill(~counts, 0)
        # Elsewhere labels are not read: covariance.update reports those out of range, and the loss itself asserts.
        return LossInputs(logits, targets, weight, features, labels, counts, grid)

    def _labels_are_valid(self, targets: Tensor) -> bool:
        """Whether every label is known to lie in 0..C-1 and none is ignored; raises for labels out of range."""
        if not on_host(targets):
            return False
        low, high = (int(value) for value in targets.aminmax())
        if low >= 0 and high < self.num_classes and not 0 <= self.ignore_index < self.num_classes:
            return True
        message = checks.label_error(targets, self.num_classes, self.ignore_index) if self.validate else None
        if message is not None:
            raise ValueError(message)
        return False

    # -- the loss ----------------------------------------------------------------------------------------------------

    def _plain_loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        soft = is_soft(targets)
        if logits.ndim > 2 and not soft:
            logits = resize_logits(logits, targets.shape[1:], self.align_corners)
        return F.cross_entropy(
            logits,
            targets if soft else targets.long(),
            weight=None if self.class_weight is None else self.class_weight.to(logits.dtype),
            # Distributions have no label to ignore, and torch refuses an ignore_index >= 0 beside them.
            ignore_index=-100 if soft else self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )

    def _loss(self, inputs: LossInputs, groups: Groups, strength: float) -> Tensor:
        return super()._loss(self._with_terms(inputs, groups, strength), groups, strength)

    def _with_terms(self, inputs: LossInputs, groups: Groups, strength: float) -> LossInputs:
        """The inputs with what shifts and offsets add to the logits (isda.functional.long_tail)."""
        if self.offset is None and self.shift is None:
            return inputs
        share = strength / self.schedule.lambda_0 if self.schedule.lambda_0 else 1.0
        with outside_autocast(inputs.logits.device):
            terms = margin_terms(self.offset, self.shift, share, self.covariance, inputs, groups, self.align_corners)
            if terms is None:
                return inputs
            logits = self._wide(inputs.logits)
            return inputs._replace(logits=logits + terms.to(logits.dtype))

    @property
    def _needs_features(self) -> bool:
        return super()._needs_features or self.shift is not None

    def _loss_without_features(self, logits: Tensor, targets: Tensor) -> Tensor:
        if self.offset is None:
            return self._plain_loss(logits, targets)
        weight = logits.new_zeros(1, 1).expand(self.num_classes, self.feature_dim)
        inputs = self._check_inputs(logits, targets, None, weight)
        return self._plain_loss(self._with_terms(inputs, self._groups(inputs), 0.0).logits, targets)

    def _unlabelled_loss(
        self,
        logits: Tensor,
        weight: Tensor | None,
        strength: float | None,
        loss_of: Callable[[Tensor, Tensor, float], Tensor],
    ) -> Tensor:
        """The reduced loss of unlabelled samples; ``loss_of`` maps rows of logits, W and lambda to losses (rows,)."""
        logits, weight, strength = self._unlabelled_inputs(logits, weight, strength)
        with outside_autocast(logits.device):
            losses = loss_of(as_rows(self._wide(logits)), self.covariance.as_statistics(weight), strength)
        if self.reduction == "none":
            return as_maps(losses.unsqueeze(1), len(logits), logits.shape[2:]).squeeze(1)
        return reduce_losses(losses, self.reduction)


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
        checks.check_integer("tilt_steps", tilt_steps)
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

        return self._unlabelled_loss(logits, weight, strength, loss_of)

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
        strength = self.schedule.strength_for_call(strength)
        inputs = self._check_inputs(logits, targets, None, weight)
        groups = self._groups(inputs)
        with outside_autocast(logits.device):
            return self._augment(self._with_terms(inputs, groups, strength), groups, strength, mask=True)

    # -- how it is computed ------------------------------------------------------------------------------------------

    def _augmented_loss(self, inputs: LossInputs, groups: Groups, strength: float) -> Tensor:
        # An ignored row adds nothing to the loss, but an ignored pixel is mixed with its neighbours.
        augmented = self._augment(inputs, groups, strength, mask=inputs.logits.ndim > 2)
        size = inputs.targets.shape[2:] if is_soft(inputs.targets) else inputs.targets.shape[1:]
        augmented = resize_logits(augmented, size, self.align_corners)
        if self.bound == "jensen" and not is_soft(inputs.targets) and not self.label_smoothing:
            return self._plain_loss(augmented, inputs.targets)
        plain = resize_logits(self._wide(inputs.logits), size, self.align_corners)
        return bound_loss(
            augmented,
            plain,
            inputs.targets,
            class_weight=self.class_weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )

    def _augment(self, inputs: LossInputs, groups: Groups, strength: float, *, mask: bool) -> Tensor:
        """Logits plus half the scaled variances, at the resolution of the logits; none where ``mask`` and ignored."""
        logits = self._wide(inputs.logits)
        weight = self.covariance.as_statistics(inputs.weight)
        rows = self.covariance.as_statistics(as_rows(resize_logits(logits, inputs.grid, self.align_corners)))
        if self.bound == "tilted":
            variance = tilted_variance(
                rows, groups.labels, groups.labels, weight, self.covariance, strength, self.tilt_steps
            )
        else:
            variance = self.covariance.row_margins(weight, groups)
        if inputs.counts is not None and mask:
            variance = variance * inputs.counts.unsqueeze(1)
        self._monitor.check(variance, rows, strength)
        variance = resize_rows(variance, inputs.grid, logits, self.align_corners)
        return augmented_logits(logits, variance, strength)

    def extra_repr(self) -> str:
        """Show the settings in repr()."""
        return f"{super().extra_repr()}, bound={self.bound!r}"
