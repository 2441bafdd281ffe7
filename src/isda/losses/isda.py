"""ISDALoss: cross-entropy over infinitely many semantically augmented features, as a drop-in criterion."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isda.attach import find_classifier
from isda.autocast import outside_autocast
from isda.choices import check_choice
from isda.covariance import CovarianceModel, create
from isda.devices import on_host
from isda.functional.bounds import augmented_logits, tilted_variance
from isda.functional.consistency import jensen_consistency, tilted_consistency
from isda.functional.grouping import Groups, group_rows
from isda.functional.tilt import TILT_STEPS
from isda.losses.arguments import check_known, check_model, check_settings
from isda.losses.compiling import outside_graphs
from isda.losses.inputs import Batch, attached, check_batch, check_logits, plain_weight, recorded
from isda.losses.schedule import StrengthSchedule
from isda.losses.spatial import as_maps, as_rows, resize_logits
from isda.losses.strength_monitor import StrengthMonitor
from isda.losses.targets import SharesMonitor, bound_loss, is_soft
from isda.losses.warning import warn_of_eval_mode
from isda.recording import Recorder, in_backward, record_inputs, weight_of

__all__ = ["ISDALoss"]

_BOUNDS = ("jensen", "tilted")
_REDUCTIONS = ("mean", "sum", "none")


class ISDALoss(nn.Module):
    """Upper bound of the expected cross-entropy over features a~ ~ N(a, lambda Sigma_y), Props. 1 and 2.

    In training mode a call updates the class covariances with the features, evaluates the bound at the current strength
    lambda = lambda_0 * t / T, and advances t. In eval mode, and for lambda = 0, it is nn.CrossEntropyLoss to the bit.

    Args:
        num_classes: C.
        feature_dim: A, the inputs of the classifier.
        lambda_0: strength at the end of training; 0.5 on CIFAR, 1 to 10 on ImageNet in the paper.
        total_steps: number of optimiser steps T over which the strength grows; None for a constant lambda_0.
        covariance: full, diagonal, low_rank, shared, identity, learned, or a CovarianceModel.
        bound: "jensen", as published, or "tilted", never looser.
        ignore_index: label of samples or pixels that do not count.
        reduction: mean, sum or none.
        label_smoothing: as in nn.CrossEntropyLoss.
        class_weight: (C,) weights of the classes, as ``weight`` in nn.CrossEntropyLoss.
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
        >>> head = nn.Linear(8, 3)
        >>> criterion = ISDALoss(num_classes=3, feature_dim=8, lambda_0=0.5, total_steps=100)
        >>> features, targets = torch.randn(4, 8), torch.tensor([0, 2, 1, 2])
        >>> loss = criterion(head(features), targets, features=features, weight=head.weight)
        >>> criterion.strength
        0.005
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
        bound: str = "jensen",
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        class_weight: Tensor | None = None,
        tilt_steps: int = TILT_STEPS,
        align_corners: bool = False,
        validate: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **covariance_settings: Any,
    ) -> None:
        super().__init__()
        self.bound = check_choice("bound", bound, _BOUNDS)
        self.reduction = check_choice("reduction", reduction, _REDUCTIONS)
        check_settings(num_classes, label_smoothing, class_weight, tilt_steps)
        self.schedule = StrengthSchedule(lambda_0, total_steps, device)
        if isinstance(covariance, str):
            factory = {"device": device, "dtype": dtype}
            check_known(covariance, covariance_settings, type(self))
            covariance = create(covariance, num_classes, feature_dim, **factory, **covariance_settings)
        else:
            check_model(covariance, num_classes, feature_dim, covariance_settings)
        self.covariance = covariance
        self.covariance.validate = validate
        self.num_classes, self.feature_dim = covariance.num_classes, covariance.feature_dim
        self.ignore_index, self.label_smoothing = ignore_index, float(label_smoothing)
        self.tilt_steps, self.align_corners, self.validate = tilt_steps, align_corners, validate
        self.register_buffer("class_weight", class_weight)
        self._recorder: Recorder | None = None
        self._last_strength = 0.0
        self._monitor = StrengthMonitor(self.schedule.lambda_0)
        self.shares = SharesMonitor()

    # -- the interface -----------------------------------------------------------------------------------------------

    @classmethod
    def attach(
        cls,
        model: nn.Module,
        lambda_0: float = 0.5,
        total_steps: int | None = None,
        *,
        classifier: nn.Module | str | None = None,
        **settings: Any,
    ) -> ISDALoss:
        """A criterion for a model nobody prepared: finds its classifier and records what goes into it.

        ``criterion(model(x), targets)`` then works like nn.CrossEntropyLoss, which it also is while the classifier is
        in eval mode: the rest of a training script, validation included, stays as it was. A criterion that was attached
        to the same classifier before is replaced; ``detach`` leaves the model as it was.

        Args:
            model: any network that ends in an nn.Linear or a 1x1 nn.Conv2d, also wrapped or compiled.
            lambda_0: see ISDALoss.
            total_steps: see ISDALoss.
            classifier: the last layer or its name, where it cannot be found by convention.
            **settings: see ISDALoss.
        """
        head = find_classifier(model, classifier)
        trained = next(head.parameters())
        settings = {"device": trained.device, "dtype": trained.dtype, **settings}
        num_classes, feature_dim = weight_of(head).shape[:2]
        criterion = cls(num_classes, feature_dim, lambda_0, total_steps, **settings)
        criterion._recorder = record_inputs(head)
        return criterion

    def detach(self) -> None:
        """Take the hook off the model, which is then as it was before ``attach``: it can be pickled without isda.

        The statistics stay, and ``criterion(logits, targets, features=..., weight=...)`` works on. Does nothing for a
        criterion that is not attached.
        """
        if self._recorder is not None:
            self._recorder.detach()
            self._recorder = None

    @property
    def strength(self) -> float:
        """The current lambda = lambda_0 * t / T."""
        return self.schedule.strength

    @property
    def step(self) -> int:
        """The current t."""
        return int(self.schedule.step)

    @property
    def advance_every(self) -> int:
        """Training forwards per step of the schedule: the number of gradient accumulation steps."""
        return self.schedule.advance_every

    @advance_every.setter
    def advance_every(self, value: int) -> None:
        self.schedule.advance_every = value

    @property
    def total_steps(self) -> int | None:
        """T, the number of steps over which the strength grows; None for a constant lambda_0; it can be set."""
        return self.schedule.total_steps

    @total_steps.setter
    def total_steps(self, value: int | None) -> None:
        self.schedule.total_steps = value

    def set_step(self, step: int) -> None:
        """Let the optimiser's step drive the schedule: t = ``step``, and training forwards no longer move it.

        Call it after every step of the optimiser, with the number of steps so far; it is exact for windows of gradient
        accumulation of any length. Setting ``advance_every`` makes forwards count again. The state_dict remembers who
        drives.

        Example:
            >>> criterion = ISDALoss(num_classes=3, feature_dim=8, lambda_0=0.5, total_steps=100)
            >>> criterion.set_step(20)
            >>> criterion.strength
            0.1
        """
        self.schedule.set_step(step)

    @outside_graphs
    def forward(
        self,
        logits: Tensor,
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
            logits: outputs of the classifier.
            targets: class indices, or distributions of the shape of the logits.
            features: inputs of the classifier; recorded by themselves after ``attach``.
            weight: weights of the classifier; likewise.
            strength: lambda for this call instead of the schedule's, which then does not move.
        """
        if not self.training:
            self._forget_recorded()
            return self._cross_entropy(logits, targets)
        recomputing = in_backward()
        moves = strength is None
        if recomputing and strength is None:
            strength = self._last_strength
        strength = self.schedule.chosen(strength)
        if features is None and weight is None and self._recorder is None and strength == self.schedule.lambda_0 == 0:
            return self._cross_entropy(logits, targets)
        again = False
        try:
            features, weight, record = recorded(self._recorder, logits, features, weight, verify=self.validate)
            if features is None or weight is None:
                return self._evaluate(logits, targets)
            if record is not None and record.strength is not None:
                again, strength = True, record.strength if moves else strength
            batch = check_batch(self, logits, targets, features, weight)
        except ValueError:
            if not (recomputing or again):
                self.covariance.withdraw()
            raise
        # A recomputation under activation checkpointing must see what the first run saw, and count nothing twice; nor
        # does a second call on one pass, as mixup makes it.
        counts = not (recomputing or again)
        groups = self._groups(batch)
        if counts:
            assert batch.features is not None
            if record is not None and record.joining:
                self.covariance.refuse_join()
            known = groups if batch.counts is None or not on_host(batch.classes) else None
            self.covariance.update(batch.features, batch.classes, mask=batch.counts, groups=known)
        loss = self._loss(batch, groups, strength)
        if counts:
            self._last_strength = strength
            if record is not None:
                record.strength = strength
            if moves:
                self.schedule.advance()
        return loss

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
        if weight is None:
            weight = attached(self._recorder, logits, weight).take_weight(logits, verify=self.validate)
        strength = self.schedule.chosen(strength)
        weight = plain_weight(weight)
        self.covariance.check_weight(weight)
        check_logits(self, logits)
        with outside_autocast(logits.device):
            rows, weight = as_rows(self._wide(logits)), self.covariance.as_statistics(weight)
            if bound == "tilted":
                narrow = self.covariance.as_statistics(rows)
                loss = tilted_consistency(narrow, weight, self.covariance, strength, self.tilt_steps).to(rows.dtype)
            else:
                loss = jensen_consistency(rows, weight, self.covariance, strength)
        if self.reduction == "none":
            return as_maps(loss.unsqueeze(1), logits).squeeze(1)
        return loss.mean() if self.reduction == "mean" else loss.sum()

    @outside_graphs
    def augmented_logits(
        self, logits: Tensor, targets: Tensor, *, weight: Tensor | None = None, strength: float | None = None
    ) -> Tensor:
        """Logits z_ij + lambda/2 (variance of margin j), for any other cross-entropy-like criterion; changes no state.

        Rows whose target is ignored come back unchanged. With the tilted bound it is logsumexp(result) - z_y that is
        the bound, not the cross-entropy of the result: use "jensen" for criteria that take logits.

        Args:
            logits: (N, C) or (N, C, H, W).
            targets: (N,) or (N, H, W) class indices, or distributions of the shape of the logits.
            weight: (C, A) weights of the classifier; recorded by themselves after ``attach``.
            strength: lambda; the current one of the schedule by default.
        """
        if weight is None:
            weight = attached(self._recorder, logits, weight).take_weight(logits, verify=self.validate)
        strength = self.schedule.chosen(strength)
        batch = check_batch(self, logits, targets, None, weight)
        with outside_autocast(logits.device):
            return self._augment(batch, self._groups(batch), strength, mask=True)

    # -- how it is computed ------------------------------------------------------------------------------------------

    def _groups(self, batch: Batch) -> Groups:
        """The rows by class; a label that does not count, or is out of range on a device, is put with another class."""
        classes = batch.classes
        if not on_host(classes):
            classes = classes.clamp(0, self.num_classes - 1)
        return group_rows(classes, self.num_classes)

    def _loss(self, batch: Batch, groups: Groups, strength: float) -> Tensor:
        if strength == 0:
            return self._cross_entropy(batch.logits, batch.targets)
        with outside_autocast(batch.logits.device):
            loss, penalty = self._bound(batch, groups, strength), self.covariance.penalty()
        if penalty is None:
            return loss
        # Once per sample or pixel, so that it weighs the same in every reduction.
        return loss + penalty * (len(batch.classes) if self.reduction == "sum" else 1)

    def _bound(self, batch: Batch, groups: Groups, strength: float) -> Tensor:
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

    def _augment(self, batch: Batch, groups: Groups, strength: float, *, mask: bool) -> Tensor:
        """Logits plus half the scaled variances, at the resolution of the logits; none where ``mask`` and ignored."""
        logits = self._wide(batch.logits)
        weight = self.covariance.as_statistics(batch.weight)
        coarse = resize_logits(logits, batch.grid, self.align_corners)
        rows = self.covariance.as_statistics(as_rows(coarse))
        if self.bound == "tilted":
            variance = tilted_variance(
                rows, groups.labels, groups.labels, weight, self.covariance, strength, self.tilt_steps
            )
        else:
            variance = self.covariance.row_margins(weight, groups)
        if batch.counts is not None and mask:
            variance = variance * batch.counts.unsqueeze(1)
        self._monitor.check(variance, rows, strength)
        if logits.ndim > 2:
            variance = resize_logits(as_maps(variance, coarse), logits.shape[2:], self.align_corners)
        return augmented_logits(logits, variance, strength)

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

    def _forget_recorded(self) -> None:
        if self._recorder is not None:
            self._recorder.clear()

    def extra_repr(self) -> str:
        """Show the settings in repr()."""
        schedule = self.schedule
        return f"lambda_0={schedule.lambda_0}, total_steps={schedule.total_steps}, bound={self.bound!r}"
