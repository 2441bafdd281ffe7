"""SemanticLoss, the base of the losses over augmented features with one class per sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from isda._utils import checks
from isda._utils.devices import on_host, outside_autocast
from isda.functional.grouping import Groups
from isda.functional.patches import Patches
from isda.losses.base import AugmentedLoss
from isda.losses.inputs import LossInputs, check_features, check_weights
from isda.losses.long_tail import MeanShift, Offset, check_providers, margin_terms
from isda.losses.targets import (
    SoftTargetMonitor,
    as_maps,
    as_rows,
    check_targets,
    grid_of,
    is_soft,
    reduce_losses,
    resize_labels,
    resize_logits,
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
        lambda_0: float | str = 0.5,
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

    def _loss(self, inputs: LossInputs, groups: Groups, strength: Any) -> Tensor:
        return super()._loss(self._with_terms(inputs, groups, strength), groups, strength)

    def _with_terms(self, inputs: LossInputs, groups: Groups, strength: Any) -> LossInputs:
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
        loss_of: Callable[[Tensor, Tensor, Any], Tensor],
    ) -> Tensor:
        """The reduced loss of unlabelled samples; ``loss_of`` maps rows of logits, W and lambda to losses (rows,)."""
        logits, weight, strength = self._unlabelled_inputs(logits, weight, strength)
        with outside_autocast(logits.device):
            losses = loss_of(as_rows(self._wide(logits)), self.covariance.as_statistics(weight), strength)
        if self.reduction == "none":
            return as_maps(losses.unsqueeze(1), len(logits), logits.shape[2:]).squeeze(1)
        return reduce_losses(losses, self.reduction)
