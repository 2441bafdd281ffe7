"""ISDABCELoss: expected binary cross-entropy over augmented features, for samples with several labels."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from isda._utils.checks import check_integer, shape_of
from isda._utils.choices import check_choice
from isda._utils.devices import READ_EVERY, on_host, outside_autocast
from isda.attach.autograd_compat import outside_graphs
from isda.covariance import CovarianceModel
from isda.functional.binary import binary_expectation, binary_jensen_bound
from isda.functional.grouping import Groups
from isda.functional.patches import Patches
from isda.losses.base import AugmentedLoss
from isda.losses.inputs import LossInputs, check_features, check_weights
from isda.losses.targets import as_rows, grid_of, reduce_losses


def ignored_labels(targets: Tensor, ignore_value: float | None) -> Tensor | None:
    """Where a label is missing, of the shape of the targets; None where no value stands for that.

    Example:
        >>> ignored_labels(torch.tensor([[1.0, -1.0]]), ignore_value=-1)
        tensor([[False,  True]])
        >>> ignored_labels(torch.tensor([[1.0, math.nan]]), ignore_value=math.nan)
        tensor([[False,  True]])
    """
    if ignore_value is None:
        return None
    return targets.isnan() if math.isnan(ignore_value) else targets == ignore_value


class LabelsMonitor:
    """Refuses labels outside 0..1: on the CPU in every call, elsewhere in the first and in every hundredth."""

    def __init__(self) -> None:
        self._calls = 0

    def check(self, targets: Tensor, ignore_value: float | None) -> None:
        """Look at targets (N, K, ...)."""
        self._calls += 1
        if not on_host(targets) and self._calls % READ_EVERY != 1:
            return
        ignored = ignored_labels(targets, ignore_value)
        outside = ((targets >= 0) & (targets <= 1)).logical_not()
        if ignored is not None:
            outside = outside & ~ignored
        bad = int(outside.sum())
        if bad:
            also = "" if ignore_value is None else f" or be ignore_value={ignore_value:g}"
            first = targets.flatten()[outside.flatten().to(torch.uint8).argmax()]
            raise ValueError(
                f"targets must lie in 0..1{also}, got {float(first):g} ({bad} of {targets.numel()} labels are out of "
                "range)"
            )


_BOUNDS = {"jensen": binary_jensen_bound, "exact": binary_expectation}


class ISDABCELoss(AugmentedLoss):
    """The expected binary cross-entropy of every label over features a~ ~ N(a, lambda Sigma): a bound, or itself.

    A sample has several labels, so one covariance Sigma is pooled over all samples. For a label s = 1 (present) or -1
    (absent) with weights w, E[log(1 + exp(-s z~))] <= log(1 + exp(-s z + lambda/2 w' Sigma w)). In training mode a call
    updates the covariance with the features, evaluates the loss at the strength lambda = lambda_0 * t / T, and advances
    t. In eval mode, and for lambda = 0, it is nn.BCEWithLogitsLoss to the bit. Not in the paper.

    Args:
        num_labels: K.
        feature_dim: A, the inputs of the classifier.
        lambda_0: strength at the end of training.
        total_steps: number of optimiser steps T over which the strength grows, see ISDALoss.
        covariance: full, diagonal, low_rank, identity, learned, auto, or a CovarianceModel of one class;
            "shared" is "full".
        bound: "jensen", as the paper bounds cross-entropy, or "exact", the expectation itself by quadrature.
        ignore_value: the target of missing labels, -1 or NaN for example; None where no label is missing. They cost
            nothing, and a mean is over the others.
        reduction: mean (over all labels of all samples), sum or none.
        pos_weight: (K,) what a present label weighs, as in nn.BCEWithLogitsLoss.
        class_weight: (K,) weights of the labels, as ``weight`` in nn.BCEWithLogitsLoss.
        validate: check labels and features for values that would spoil loss or statistics.
        device: where the statistics live.
        dtype: their type, at least float32.
        **covariance_settings: for the covariance model: rank, decay, sync, process_group, ...

    Shape:
        - logits (N, K) or (N, K, H, W); targets in 0..1 of the same shape, also as integers or bool; features (N, A) or
          (N, A, h, w); weight (K, A) or a 1x1 convolution's (K, A, 1, 1).

    Example:
        >>> head = torch.nn.Linear(8, 3)
        >>> criterion = ISDABCELoss(num_labels=3, feature_dim=8, lambda_0=0.5, total_steps=100)
        >>> features, targets = torch.randn(2, 8), torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
        >>> loss = criterion(head(features), targets, features=features, weight=head.weight)
        >>> criterion.strength
        0.005
    """

    pos_weight: Tensor | None
    _pooled = True

    def __init__(
        self,
        num_labels: int,
        feature_dim: int,
        lambda_0: float = 0.5,
        total_steps: int | None = None,
        *,
        schedule: str = "linear",
        covariance: str | CovarianceModel = "auto",
        bound: str = "jensen",
        ignore_value: float | None = None,
        reduction: str = "mean",
        pos_weight: Tensor | None = None,
        class_weight: Tensor | None = None,
        validate: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **covariance_settings: Any,
    ) -> None:
        check_integer("num_labels", num_labels, 1)
        check_choice("bound", bound, _BOUNDS)
        for name, given in (("pos_weight", pos_weight), ("class_weight", class_weight)):
            if given is not None:
                check_weights(name, given, num_labels)
        super().__init__(
            num_labels,
            feature_dim,
            lambda_0,
            total_steps,
            schedule=schedule,
            covariance=covariance,
            reduction=reduction,
            class_weight=class_weight,
            validate=validate,
            device=device,
            dtype=dtype,
            **covariance_settings,
        )
        self.num_labels, self.bound, self.ignore_value = self.num_classes, bound, ignore_value
        self.register_buffer("pos_weight", pos_weight)
        self._labels = LabelsMonitor()

    @outside_graphs
    def consistency(self, logits: Tensor, *, weight: Tensor | None = None, strength: float | None = None) -> Tensor:
        """The loss of unlabelled samples with their own predictions, held constant, as targets; changes no state.

        E[-p log p~ - (1 - p) log(1 - p~)] of every label, or its bound. The weights of labels do not enter.

        Args:
            logits: (N, K) or (N, K, H, W).
            weight: (K, A) weights of the classifier; recorded by themselves after ``attach``.
            strength: lambda; the current one of the schedule by default.
        """
        logits, weight, strength = self._unlabelled_inputs(logits, weight, strength)
        with outside_autocast(logits.device):
            logits = self._wide(logits)
            losses = _BOUNDS[self.bound](logits, logits.detach().sigmoid(), self._variance(weight, logits), strength)
            return self._reduce(losses, None)

    # -- how it is computed ------------------------------------------------------------------------------------------

    def _check_inputs(
        self, logits: Tensor, targets: Tensor, features: Tensor | Patches | None, weight: Tensor
    ) -> LossInputs:
        weight = self._check_classifier(logits, targets, features, weight)
        if targets.shape != logits.shape:
            expected = f"the shape of logits, {shape_of(logits)}"
            raise ValueError(f"targets must have {expected}, one label for each, got {shape_of(targets)}")
        if features is None:
            raise ValueError("features must be given, got None")
        check_features(logits, features, self.feature_dim)
        if self.validate:
            self._labels.check(targets, self.ignore_value)
        rows = as_rows(features)
        # Every row is of class 0: there is one covariance, and every sample counts, whatever its labels.
        classes = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
        return LossInputs(logits, targets, weight, rows, classes, None, grid_of(features))

    def _augmented_loss(self, inputs: LossInputs, groups: Groups, strength: float) -> Tensor:
        logits = self._wide(inputs.logits)
        targets, ignored = self._without_missing(logits, inputs.targets)
        variance = self._variance(inputs.weight, logits)
        pos_weight, class_weight = self._along(self.pos_weight, logits), self._along(self.class_weight, logits)
        losses = _BOUNDS[self.bound](logits, targets.to(logits.dtype), variance, strength, pos_weight)
        return self._reduce(losses if class_weight is None else losses * class_weight, ignored)

    def _plain_loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        targets, ignored = self._without_missing(logits, targets)
        loss = F.binary_cross_entropy_with_logits(
            logits,
            targets,
            weight=self._along(self.class_weight, logits),
            reduction=self.reduction if ignored is None else "none",
            pos_weight=self._along(self.pos_weight, logits),
        )
        return loss if ignored is None else self._reduce(loss, ignored)

    def _variance(self, weight: Tensor, logits: Tensor) -> Tensor:
        """The variance w' Sigma w of every logit: (K, 1, ...), the same for all samples and pixels."""
        pooled = torch.zeros(1, dtype=torch.int64, device=weight.device)
        variance = self.covariance.variances(self.covariance.as_statistics(weight), pooled)
        return variance.clamp_min(0).view(-1, *[1] * (logits.ndim - 2))

    def _without_missing(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        """The targets in floating point, 0 where they are missing, and where that is."""
        ignored = ignored_labels(targets, self.ignore_value)
        if not targets.is_floating_point():
            targets = targets.to(logits.dtype)
        return targets if ignored is None else targets.masked_fill(ignored, 0), ignored

    def _along(self, of_labels: Tensor | None, logits: Tensor) -> Tensor | None:
        """Numbers (K,) of the labels in the dtype of the logits, to be broadcast along their second dimension."""
        return None if of_labels is None else of_labels.to(logits.dtype).view(-1, *[1] * (logits.ndim - 2))

    def _reduce(self, losses: Tensor, ignored: Tensor | None) -> Tensor:
        if ignored is None:
            return reduce_losses(losses, self.reduction)
        return reduce_losses(losses.masked_fill(ignored, 0), self.reduction, ignored.logical_not().sum().clamp_min(1))

    def _loss_count(self, inputs: LossInputs) -> int:
        return inputs.logits.numel()

    def extra_repr(self) -> str:
        """Show the settings in repr()."""
        return f"{super().extra_repr()}, bound={self.bound!r}"
