"""ISDALoss: cross-entropy over infinitely many semantically augmented features, as a drop-in criterion."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from isda._utils import checks
from isda._utils.choices import check_choice
from isda._utils.devices import outside_autocast
from isda._utils.distributed import all_reduce_sum, world_size
from isda.attach.autograd_compat import outside_graphs, refuse_transforms
from isda.covariance import CovarianceModel
from isda.functional.bounds import augmented_logits, jensen_consistency, tilted_consistency, tilted_variance
from isda.functional.grouping import Groups
from isda.functional.tilt import TILT_STEPS
from isda.losses.inputs import LossInputs, check_logits
from isda.losses.long_tail import MeanShift, Offset
from isda.losses.matching import KEPT_ROWS, AutomaticStrength, loader_outputs, sharper_scale, solve_strength
from isda.losses.monitors import StrengthMonitor, capped_variance
from isda.losses.semantic import SemanticLoss
from isda.losses.targets import (
    as_rows,
    bound_loss,
    check_targets,
    is_soft,
    logits_of,
    resize_logits,
    resize_rows,
)

_BOUNDS = ("jensen", "tilted")
AUTOMATIC_RATIO = 1.0
"""The max_ratio of lambda_0="auto", whose strength may be large while the learning rate is high."""


class ISDALoss(SemanticLoss):
    """Upper bound of the expected cross-entropy over features a~ ~ N(a, lambda Sigma_y), Props. 1 and 2.

    In training mode a call updates the class covariances with the features, evaluates the bound at the current strength
    lambda = lambda_0 * t / T, and advances t. In eval mode, and for lambda = 0, it is nn.CrossEntropyLoss to the bit.

    Args:
        num_classes: C.
        feature_dim: A, the inputs of the classifier.
        lambda_0: strength at the end of training; 0.5 on CIFAR, 1 to 10 on ImageNet in the paper. "auto" for a strength
            that ``match`` sets after each evaluation.
        total_steps: number of optimiser steps T over which the strength grows; without it, it grows over 10,000 steps,
            with a warning. ``attach`` also takes epochs and loader.
        schedule: "linear", lambda_0 * t / T, or "constant".
        covariance: full, diagonal, low_rank, shared, within (one matrix, pooled within the classes), shrunk (full,
            shrunk towards within), identity, learned, auto (full up to a limit of memory and of work per step, else
            low_rank; see `isda.covariance.create`), or a CovarianceModel.
        bound: "jensen", as published, or "tilted", never looser.
        ignore_index: label of samples or pixels that do not count.
        reduction: mean, sum or none.
        label_smoothing: as in nn.CrossEntropyLoss.
        class_weight: (C,) weights of the classes, as ``weight`` in nn.CrossEntropyLoss.
        offset: what is added to the margins in training, such as LogitAdjustment or LDAMMargins (docs/longtail.md).
        shift: what moves the means of the augmented features, such as ConfusionShift.
        tilt_steps: Newton steps of the search for the tilted bound; 0 leaves it at the published one.
        max_ratio: upper limit of the mean of lambda/2 times the margin variances, in units of what the logits of a
            sample vary by; lambda is lowered for batches that exceed it. Infinity for no limit; by default none for a
            number lambda_0, as in the paper, and 1 for "auto" (benchmarks/results/rates.md).
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

    _supports_matching = True

    def __init__(
        self,
        num_classes: int,
        feature_dim: int,
        lambda_0: float | str = 0.5,
        total_steps: int | None = None,
        *,
        schedule: str = "linear",
        covariance: str | CovarianceModel = "auto",
        bound: str = "jensen",
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        class_weight: Tensor | None = None,
        offset: Offset | None = None,
        shift: MeanShift | None = None,
        tilt_steps: int = TILT_STEPS,
        max_ratio: float | None = None,
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
            schedule=schedule,
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
        if self.schedule.automatic and (offset is not None or shift is not None):
            raise ValueError("lambda_0 must be a number with offset or shift: 'auto' does not support them")
        if max_ratio is not None and not max_ratio > 0:
            raise ValueError(f"max_ratio must be a positive number or None, got {max_ratio!r}")
        if max_ratio is None and self.schedule.automatic:
            max_ratio = AUTOMATIC_RATIO
        self.bound, self.tilt_steps = bound, tilt_steps
        self.max_ratio = None if max_ratio == math.inf else max_ratio
        self._monitor = StrengthMonitor()

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

        def loss_of(rows: Tensor, weight: Tensor, strength: Any) -> Tensor:
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

    @outside_graphs
    @torch.no_grad()
    def match(
        self,
        logits: Any = None,
        targets: Tensor | None = None,
        *,
        held_out_loss: float | None = None,
        training: Any = None,
        weight: Tensor | None = None,
    ) -> float:
        """Set the strength of lambda_0="auto" so that the augmented training loss predicts the held-out loss.

        Solves mean_i [logsumexp_j(z_ij + lambda/2 R[y_i, j]) - z_iy] = held-out cross-entropy for lambda, with
        bound="tilted" the same of the tilted bound, at the current weights and in eval mode. Where the held-out loss
        would be lower with larger logits, both sides are taken with logits up to twice as large. The strength is the
        median of the last five solutions, 0 before the first call. Call it once per epoch; with several processes, on
        each.

        Args:
            logits: held-out logits, computed in eval mode; or a loader of held-out (inputs, targets), over which the
                attached model is run.
            targets: (N,) or (N, H, W) held-out class indices; not given with a loader.
            held_out_loss: the mean cross-entropy of held-out samples instead of logits and targets; that of all
                processes together.
            training: (logits, targets) of training samples, in eval mode and without augmentation, or a loader of
                them; by default the inputs of the latest training batches, run again through the attached model.
            weight: (C, A) weights of the classifier; recorded by themselves after ``attach``.

        Returns:
            The new strength.

        Example:
            >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
            >>> criterion = ISDALoss.attach(model, lambda_0="auto")
            >>> x, y = torch.randn(30, 4), torch.arange(30) % 3
            >>> criterion(model(x), y).backward()
            >>> strength = criterion.match(model(torch.randn(10, 4)), torch.arange(10) % 3)
            >>> strength == criterion.strength
            True
        """
        schedule = self.schedule
        if not isinstance(schedule, AutomaticStrength):
            raise ValueError(f"match needs a criterion with lambda_0='auto', got lambda_0={schedule.lambda_0}")
        if (logits is None) == (held_out_loss is None):
            raise ValueError("match needs held-out logits and targets, or held_out_loss, and not both")
        samples = self._training_rows(training, weight)
        scale, target = self._held_out_loss(logits, targets) if held_out_loss is None else (1.0, float(held_out_loss))
        if not math.isfinite(target):
            raise ValueError(f"match needs a finite held-out loss, got {target}")
        if scale > 1:
            samples = [(rows * scale, labels, weight * scale) for rows, labels, weight in samples]
        schedule.add(solve_strength(self._bound_curve(samples), target))
        return schedule.strength

    def _held_out_loss(self, logits: Any, targets: Tensor | None) -> tuple[float, float]:
        """The factor on held-out logits at which their mean cross-entropy is lowest, and that; over all processes."""
        outputs = self._outputs(logits, targets)
        held_out = [self.labelled_rows(*self._classes_second(logits_of(output), given)) for output, given in outputs]
        count = sum(len(rows) for rows, _ in held_out)

        def loss_at(scale: float) -> float:
            losses = (F.cross_entropy(rows * scale, labels, reduction="sum") for rows, labels in held_out)
            return self._mean_over_processes([sum(map(float, losses)), count])

        if not self._mean_over_processes([count, 1.0]):
            raise ValueError("match needs at least one held-out sample with a label, got none")
        plain = loss_at(1.0)
        scale = sharper_scale(loss_at) if math.isfinite(plain) else 1.0
        return scale, plain if scale == 1 else loss_at(scale)

    def _mean_over_processes(self, sum_and_count: list[float]) -> float:
        """The quotient of a sum and a count over all processes that share statistics; NaN for a count of 0."""
        values = torch.tensor(sum_and_count, dtype=torch.float64)
        if self.covariance.sync and world_size(self.covariance.process_group) > 1:
            values = all_reduce_sum(values.to(self.covariance.count.device))
        return float(values[0] / values[1])

    def _outputs(self, outputs: Any, targets: Tensor | None) -> list[tuple[Any, Tensor]]:
        """Outputs and targets as they were given, or those of the attached model over a loader."""
        if targets is not None:
            return [(outputs, targets)]
        model = None if self._samples is None else self._samples.model
        if model is None:
            raise ValueError("match needs targets beside the logits; a loader needs ISDALoss.attach(model)")
        return loader_outputs(model, outputs)

    def _training_rows(self, training: Any, weight: Tensor | None) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Rows of logits, labels and the classifier's weight, of training samples."""
        if training is not None:
            pair = isinstance(training, tuple) and len(training) == 2 and isinstance(training[1], Tensor)
            outputs = self._outputs(*training) if pair else self._outputs(training, None)
        elif self._samples is not None and len(self._samples):
            outputs = self._samples.outputs()
        else:
            raise ValueError(
                "match needs training batches: call it after the first ones with labels, or pass "
                "training=(logits, targets)"
            )
        samples = []
        for output, given in outputs:
            logits, targets = self._classes_second(logits_of(output), given)
            own = self._require_recorder("weight").current_weight(logits) if weight is None else weight
            own = self._check_classifier(logits, targets, None, own)
            samples.append((*self.labelled_rows(logits, targets), own))
        return samples

    def labelled_rows(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (N, C) of samples or pixels with a label, at its resolution, and the labels; at most 16,384."""
        check_logits(logits, self.num_classes)
        if is_soft(targets):
            raise ValueError("match needs targets of class indices, got distributions")
        check_targets(logits, targets)
        labels = targets.flatten().long()
        message = checks.label_error(labels, self.num_classes, self.ignore_index)
        if message is not None:
            raise ValueError(message)
        rows = as_rows(resize_logits(self._wide(logits), targets.shape[1:], self.align_corners))
        counted = (labels != self.ignore_index).nonzero().flatten()
        counted = counted[:: max(1, math.ceil(len(counted) / KEPT_ROWS))]
        return rows[counted], labels[counted]

    def _bound_curve(self, samples: Sequence[tuple[Tensor, Tensor, Tensor]]) -> Callable[[float], float]:
        """The mean bound of samples, over all processes, as a function of lambda."""
        count, known = sum(len(rows) for rows, _, _ in samples), []
        for rows, labels, weight in samples:
            groups = self._groups(self._check_inputs(rows, labels, None, weight))
            wide, plain = self.covariance.as_statistics(rows), self.covariance.as_statistics(weight)
            # The published form does not depend on lambda but for the factor.
            fixed = None if self.bound == "tilted" else self._row_variances(wide, groups, plain, 1.0)
            known.append((wide, labels, groups, plain, fixed))

        def mean_bound(strength: float) -> float:
            total = 0.0
            for rows, labels, groups, weight, fixed in known:
                variance = self._row_variances(rows, groups, weight, strength) if fixed is None else fixed
                losses = augmented_logits(rows, variance, strength).logsumexp(1) - rows.gather(1, labels[:, None])[:, 0]
                total += float(losses.double().sum())
            return self._mean_over_processes([total, count])

        return mean_bound

    # -- how it is computed ------------------------------------------------------------------------------------------

    @property
    def _records_graphs(self) -> bool:
        return self.offset is None and self.shift is None

    def _augmented_loss(self, inputs: LossInputs, groups: Groups, strength: Any) -> Tensor:
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

    def _augment(self, inputs: LossInputs, groups: Groups, strength: Any, *, mask: bool) -> Tensor:
        """Logits plus half the scaled variances, at the resolution of the logits; none where ``mask`` and ignored."""
        logits = self._wide(inputs.logits)
        weight = self.covariance.as_statistics(inputs.weight)
        rows = self.covariance.as_statistics(as_rows(resize_logits(logits, inputs.grid, self.align_corners)))
        variance = self._row_variances(rows, groups, weight, strength)
        if inputs.counts is not None and mask:
            variance = variance * inputs.counts.unsqueeze(1)
        if self.max_ratio is not None:
            variance = capped_variance(variance, rows, strength, self.max_ratio)
        self._monitor.check(variance, rows, strength)
        variance = resize_rows(variance, inputs.grid, logits, self.align_corners)
        return augmented_logits(logits, variance, strength)

    def _row_variances(self, rows: Tensor, groups: Groups, weight: Tensor, strength: float | Tensor) -> Tensor:
        """(N, C) variances of the margins of rows, or the tilted ones, which depend on the strength."""
        if self.bound == "tilted":
            labels = groups.labels
            return tilted_variance(rows, labels, labels, weight, self.covariance, strength, self.tilt_steps)
        return self.covariance.row_margins(weight, groups)

    def extra_repr(self) -> str:
        """Show the settings in repr()."""
        return f"{super().extra_repr()}, bound={self.bound!r}"
