"""What every criterion over augmented features shares: what a call does, and the parts that its loss is made of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from isda import checks
from isda.autocast import outside_autocast
from isda.choices import check_choice
from isda.covariance import CovarianceModel
from isda.devices import on_host
from isda.functional.grouping import Groups, group_rows
from isda.functional.patches import Patches
from isda.losses.arguments import check_settings, made_covariance
from isda.losses.attachable import AttachableLoss
from isda.losses.compiling import outside_graphs, refuse_transforms
from isda.losses.inputs import Batch, check_batch, check_logits, plain_weight, recorded
from isda.losses.learning import RepeatMonitor, learn
from isda.losses.long_tail.providers import MeanShift, Offset
from isda.losses.long_tail.terms import check_providers, margin_terms
from isda.losses.outputs import classes_second, logits_of
from isda.losses.schedule import StrengthSchedule
from isda.losses.spatial import as_maps, as_rows, resize_logits
from isda.losses.targets import SharesMonitor, is_soft
from isda.losses.warning import warn_of_eval_mode
from isda.recording import in_backward

__all__ = ["SemanticLoss"]

_REDUCTIONS = ("mean", "sum", "none")


class SemanticLoss(AttachableLoss, ABC):
    """The expected cross-entropy over features a~ ~ N(a, lambda Sigma_y), which a subclass bounds or estimates.

    In training mode a call updates the class covariances with the features, evaluates the loss at the current strength
    lambda = lambda_0 * t / T, and advances t. In eval mode, and for lambda = 0, it is nn.CrossEntropyLoss to the bit.
    The arguments are those of ISDALoss.
    """

    class_weight: Tensor | None

    def __init__(
        self,
        num_classes: int,
        feature_dim: int,
        lambda_0: float = 0.5,
        total_steps: int | None = None,
        *,
        covariance: str | CovarianceModel = "full",
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        class_weight: Tensor | None = None,
        offset: Offset | None = None,
        shift: MeanShift | None = None,
        align_corners: bool = False,
        validate: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **covariance_settings: Any,
    ) -> None:
        super().__init__()
        self.reduction = check_choice("reduction", reduction, _REDUCTIONS)
        check_settings(num_classes, label_smoothing, class_weight)
        self.schedule = StrengthSchedule(lambda_0, total_steps, device)
        self.covariance = made_covariance(
            covariance, num_classes, feature_dim, covariance_settings, type(self), device=device, dtype=dtype
        )
        check_providers(offset, shift, self.covariance)
        self.covariance.validate = validate
        self.offset = None if offset is None else offset.to(device, self.covariance.dtype)
        self.shift = None if shift is None else shift.to(device)
        self.num_classes, self.feature_dim = self.covariance.num_classes, self.covariance.feature_dim
        self.ignore_index, self.label_smoothing = ignore_index, float(label_smoothing)
        self.align_corners, self.validate = align_corners, validate
        self.register_buffer("class_weight", class_weight)
        self.shares, self._repeats = SharesMonitor(), RepeatMonitor()

    # -- what a criterion brings -------------------------------------------------------------------------------------

    @abstractmethod
    def _augmented_loss(self, batch: Batch, groups: Groups, strength: float) -> Tensor:
        """The loss at a strength above 0, reduced; called outside autocast."""

    @abstractmethod
    def consistency(self, logits: Tensor, *, weight: Tensor | None = None, strength: float | None = None) -> Tensor:
        """The consistency loss of unlabelled samples, section 5; needs no labels and changes no state."""

    def _checked(self, logits: Tensor, targets: Tensor, features: Tensor | Patches, weight: Tensor) -> Batch:
        """The input of a call in one form, or a ValueError."""
        return check_batch(self, logits, targets, features, weight)

    # -- a call ------------------------------------------------------------------------------------------------------

    @outside_graphs
    def forward(
        self,
        logits: Any,
        targets: Tensor,
        *,
        features: Tensor | None = None,
        weight: Tensor | None = None,
        strength: float | None = None,
    ) -> Tensor:
        """The loss; in training mode it also learns from the features and advances the schedule.

        With an attached criterion a forward pass of the model counts once: the labels of the first call on its logits
        feed the statistics, and later calls use the same strength and change nothing. Logits without a graph that the
        classifier did not make (those of an averaged copy of the model) get plain cross-entropy.

        Args:
            logits: outputs of the classifier, or an output of the model that has them as ``logits`` or ``out``.
            targets: class indices, or distributions of the shape of the logits.
            features: inputs of the classifier; recorded by themselves after ``attach``.
            weight: weights of the classifier; likewise.
            strength: lambda for this call instead of the schedule's, which then does not move.
        """
        if not self.training:
            logits, targets = self._as_torch_has_it(logits_of(logits), targets)
            self._forget_recorded()
            return self._cross_entropy(logits, targets)
        refuse_transforms(self)
        given = targets
        recomputing = in_backward() or self._held
        moves = strength is None
        alone = features is None and weight is None and self._recorder is None and self.shift is None
        plain = alone and self.schedule.lambda_0 == 0
        # A recomputation under activation checkpointing must see what the first run saw, and count nothing twice; nor
        # do a second call on one pass, as mixup may make it, and a second pass over the batch.
        counts = not (recomputing or plain)
        try:
            logits = logits_of(logits)
            strength = self.schedule.chosen(self._last_strength if recomputing and strength is None else strength)
            if plain and strength == 0:
                return (
                    self._cross_entropy(logits, targets) if self.offset is None else self._offset_loss(logits, targets)
                )
            rows, weight, record = recorded(self._recorder, logits, features, weight, verify=self.validate)
            if rows is None or weight is None:
                counts = False
                return self._evaluate(*self._as_torch_has_it(logits, targets))
            if record is not None and record.has_classes_last(logits):
                logits, targets = classes_second(logits, targets)
            if record is not None and record.strength is not None:
                counts, strength = False, record.strength if moves else strength
            batch = self._checked(logits, targets, rows, weight)
            groups = self._groups(batch)
        except Exception as error:
            if counts:
                self.covariance.withdraw(error)
            raise
        if counts:
            if record is not None and record.joining:
                self.covariance.refuse_join()
            learn(self.covariance, batch, groups, self.align_corners)
            if self.validate:
                self._repeats.check(given, weight)
        loss = self._loss(self._with_terms(batch, groups, strength), groups, strength)
        if counts:
            self._last_strength = strength
            if record is not None:
                record.strength = strength
            if moves:
                self.schedule.advance()
        return loss

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        checks.check_state(self, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _check_state(self, state: Mapping[str, Any], prefix: str) -> None:
        """Raise ValueError for a state with class weights that the constructor refuses, before any of it is loaded."""
        for name in self._buffers:
            checks.check_entry(prefix + name, state.get(prefix + name), 0)

    # -- how it is computed ------------------------------------------------------------------------------------------

    def _groups(self, batch: Batch) -> Groups:
        """The rows by class; a label that does not count, or is out of range on a device, is put with another class."""
        classes = batch.classes
        if not on_host(classes):
            classes = classes.clamp(0, self.num_classes - 1)
        return group_rows(classes, self.num_classes)

    def _with_terms(self, batch: Batch, groups: Groups, strength: float) -> Batch:
        """The batch with what shifts and offsets add to its logits (isda.functional.long_tail); itself without them."""
        share = strength / self.schedule.lambda_0 if self.schedule.lambda_0 else 1.0
        with outside_autocast(batch.logits.device):
            terms = margin_terms(self.offset, self.shift, share, self.covariance, batch, groups, self.align_corners)
            if terms is None:
                return batch
            logits = self._wide(batch.logits)
            return batch._replace(logits=logits + terms.to(logits.dtype))

    def _offset_loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy with offsets alone, which needs neither features nor weights."""
        nothing = logits.new_zeros(1, 1).expand(self.num_classes, self.feature_dim)
        batch = check_batch(self, logits, targets, None, nothing)
        return self._cross_entropy(self._with_terms(batch, self._groups(batch), 0.0).logits, targets)

    def _loss(self, batch: Batch, groups: Groups, strength: float) -> Tensor:
        if strength == 0:
            return self._cross_entropy(batch.logits, batch.targets)
        with outside_autocast(batch.logits.device):
            loss, penalty = self._augmented_loss(batch, groups, strength), self.covariance.penalty()
        if penalty is None:
            return loss
        # Once per loss that is added up, so that it weighs the same in every reduction.
        return loss + penalty * (self._terms(batch) if self.reduction == "sum" else 1)

    def _terms(self, batch: Batch) -> int:
        """How many losses a call adds up."""
        return len(batch.classes)

    def _over_unlabelled(
        self,
        logits: Tensor,
        weight: Tensor | None,
        strength: float | None,
        loss_of: Callable[[Tensor, Tensor, float], Tensor],
    ) -> Tensor:
        """The reduced loss of unlabelled samples; ``loss_of`` maps rows of logits, W and lambda to losses (rows,)."""
        refuse_transforms(self)
        logits = logits_of(logits)
        weight = plain_weight(self._weight_for(logits, weight))
        strength = self.schedule.chosen(strength)
        self.covariance.check_weight(weight)
        check_logits(self, logits)
        with outside_autocast(logits.device):
            loss = loss_of(as_rows(self._wide(logits)), self.covariance.as_statistics(weight), strength)
        if self.reduction == "none":
            return as_maps(loss.unsqueeze(1), len(logits), logits.shape[2:]).squeeze(1)
        return loss.mean() if self.reduction == "mean" else loss.sum()

    def _wide(self, logits: Tensor) -> Tensor:
        """The logits in the dtype of the statistics, or in their own where that is wider."""
        dtype = torch.promote_types(logits.dtype, self.covariance.dtype)
        return logits if logits.dtype == dtype else logits.to(dtype)

    def _evaluate(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The attached classifier was in eval mode: a script that changed one line validates with us, too."""
        if logits.requires_grad:
            warn_of_eval_mode()
        return self._cross_entropy(logits, targets)

    def _cross_entropy(self, logits: Tensor, targets: Tensor) -> Tensor:
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
