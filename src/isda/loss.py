"""ISDALoss: cross-entropy over infinitely many semantically augmented features, Algorithm 1 as a drop-in criterion."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from isda import bounds
from isda._checks import check_choice, check_labels, check_number, describe, on_host
from isda.attach import logits_of
from isda.covariance.base import Groups, outside_autocast
from isda.criterion import AugmentedLoss, in_float32


class ISDALoss(AugmentedLoss):
    """Upper bound of the expected cross-entropy over features a~ ~ N(a, lambda Sigma_y), Prop. 1.

    In training mode a call updates the class covariances with the features, evaluates the bound at the current strength
    lambda = lambda_0 min(t / T, 1), and advances t. In eval mode, without gradients, and for lambda_0 = 0 it is
    nn.CrossEntropyLoss to the bit.

    Args:
        num_classes: C.
        feature_dim: A, the inputs of the classifier.
        lambda_0: strength at the end of training.
        total_steps: T, the number of training forwards over which the strength grows.
        covariance: full, diagonal, low_rank (rank=), shared, within, identity, learned, or a model of one's own (see
            isda.covariance.Covariance).
        bound: "jensen", as published, or "tilted", never looser.
        ignore_index: label of samples or pixels that do not count.
        reduction: mean, sum or none.
        label_smoothing: as in nn.CrossEntropyLoss.
        class_weight: (C,) as ``weight`` in nn.CrossEntropyLoss.
        align_corners: how logits are upsampled to finer labels (F.interpolate).
        max_ratio: upper limit of (lambda/2 mean variance of the margins) / (mean standard deviation of the logits of a
            sample); a batch that exceeds it has a smaller lambda. None for no limit, as in the paper.
        device: where the statistics live.
        dtype: their type, at least float32.
        **covariance_settings: memory, sync, process_group, rank, ...

    Shape:
        - logits (N, C), (N, C, H, W) or tokens (N, T, C); targets (N,), (N, H', W') or (N, T), or distributions of the
          shape of the logits; features (N, A), (N, A, H, W) or (N, T, A); weight (C, A) or (C, A, 1, 1).

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
        covariance: str | Any = "full",
        bound: str = "jensen",
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        class_weight: Tensor | None = None,
        align_corners: bool = False,
        max_ratio: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **covariance_settings: Any,
    ) -> None:
        check_choice("bound", bound, ("jensen", "tilted"))
        super().__init__(
            num_classes,
            feature_dim,
            lambda_0,
            total_steps,
            covariance=covariance,
            reduction=reduction,
            class_weight=class_weight,
            align_corners=align_corners,
            device=device,
            dtype=dtype,
            **covariance_settings,
        )
        self.bound, self.ignore_index = bound, ignore_index
        self.label_smoothing = check_number("label_smoothing", label_smoothing, high=1.0)
        self.max_ratio = None if max_ratio is None else check_number("max_ratio", max_ratio, low=1e-30)

    def forward(
        self,
        input: Any,
        target: Tensor,
        *,
        features: Tensor | None = None,
        weight: Tensor | None = None,
        strength: float | Tensor | None = None,
    ) -> Tensor:
        """The loss of logits and targets; features and weight come from the attached model if they are not given.

        Args:
            input: logits, or an output of a model that has them as ``logits`` or ``out``.
            target: class indices or distributions.
            features: inputs of the classifier.
            weight: the classifier's weight.
            strength: lambda of this call; by default that of the schedule, which then advances.
        """
        output, target = logits_of(input), as_labels(target)
        found = self.inputs(output, features, weight) if self.trains(strength) else None
        if found is None:  # nothing to learn or to augment
            logits, target, _ = self.classes_second(output, target)
            return self.cross_entropy(logits, target)
        features, weight, learns = found  # the deep features a_i and the classifier's W
        logits, target, features = self.classes_second(output, target, features)
        weight = self.checked_weight(logits, weight)
        labels, counted = self.labels_of(logits, target, features)
        lam = self.strength_of_call(strength)  # lambda = lambda_0 t / T
        if learns:  # Sigma_1, ..., Sigma_C by eqs. (1) to (3)
            self.learn(features, rows_of(features), labels, counted)
        with outside_autocast(logits.device):
            logits = in_float32(logits)
            augmented = self.augmented(logits, labels, counted, features.shape[2:], weight, lam)  # Prop. 1
            loss = self.expected_loss(augmented, logits, target)
            penalty = self.covariance.penalty()
        self.advance(strength)  # t = t + 1
        return loss if penalty is None else loss + penalty

    def augmented_logits(
        self, logits: Tensor, targets: Tensor, *, weight: Tensor | None = None, strength: float | None = None
    ) -> Tensor:
        """Logits z_ij + lambda/2 (variance of margin j), for other criteria that take logits; learns nothing.

        With the tilted bound it is logsumexp(result) - z_y that is the bound, not the cross-entropy of the result.

        Args:
            logits: (N, C) or (N, C, H, W).
            targets: as in a call.
            weight: (C, A), that of the attached classifier by default.
            strength: lambda; the current one by default.
        """
        logits, targets, _ = self.classes_second(logits_of(logits), as_labels(targets))
        weight = self.checked_weight(logits, weight)
        labels, counted = self.labels_of(logits, targets, logits)
        check_labels(labels, self.num_classes, counted)
        lam = self.strength_of_call(strength)
        with outside_autocast(logits.device):
            return self.augmented(in_float32(logits), labels, counted, logits.shape[2:], weight, lam)

    def consistency(
        self, logits: Tensor, *, weight: Tensor | None = None, strength: float | Tensor | None = None
    ) -> Tensor:
        """Prop. 2: the consistency bound of unlabelled samples; needs no labels and changes no state.

        Args:
            logits: (N, C) or (N, C, H, W).
            weight: (C, A), that of the attached classifier by default.
            strength: lambda; the current one by default.
        """
        logits = logits_of(logits)
        weight = self.checked_weight(logits, weight)
        with outside_autocast(logits.device):
            rows = rows_of(logits).to(torch.promote_types(logits.dtype, weight.dtype))
            losses = bounds.consistency(rows, weight, self.covariance, self.strength_of_call(strength), self.bound)
        if self.reduction == "none":
            return losses.view(len(logits), *logits.shape[2:])
        return losses.sum() if self.reduction == "sum" else losses.mean()

    # -- parts of a call ---------------------------------------------------------------------------------------------

    def augmented(
        self,
        logits: Tensor,
        labels: Tensor,
        counted: Tensor | None,
        grid: torch.Size,
        weight: Tensor,
        strength: float | Tensor,
    ) -> Tensor:
        """Logits plus lambda/2 times the variances of the margins, computed at the resolution of the features."""
        safe = labels if counted is None else torch.where(counted, labels, 0)
        groups = Groups.of(safe, self.num_classes)
        rows = rows_of(self.resize(logits, grid)).detach()
        if self.bound == "tilted":
            margins, forms = bounds.margin_forms(weight, self.covariance, groups, safe)
            variance = bounds.tilted_variance(rows.to(weight.dtype), margins, forms, safe, strength)
        else:
            variance = self.covariance.margins(weight, groups.classes).index_select(0, groups.slot)
        if counted is not None:
            variance = variance * counted.unsqueeze(1)
        number = len(labels) if counted is None else counted.sum().clamp(min=1)
        mean = variance.detach().mean(1).sum() / number
        if self.max_ratio is not None:
            deviation = bounds.deviation(rows).squeeze(1)
            spread = (deviation if counted is None else deviation * counted).sum() / number
            limit = self.max_ratio * spread / (strength / 2 * mean).clamp(min=torch.finfo(mean.dtype).tiny)
            variance, mean = variance * limit.clamp(max=1), mean * limit.clamp(max=1)
        self.margin_variance = mean
        if logits.ndim > 2:
            variance = self.resize(variance.view(len(logits), *grid, -1).movedim(-1, 1), logits.shape[2:])
        return bounds.augmented_logits(logits, variance, strength)

    def expected_loss(self, augmented: Tensor, logits: Tensor, target: Tensor) -> Tensor:
        """The bound from augmented logits: their cross-entropy for the published one and hard labels."""
        soft = target.is_floating_point()
        if self.bound == "jensen" and not soft and not self.label_smoothing:
            return self.cross_entropy(augmented, target)
        size = target.shape[2:] if soft else target.shape[1:]
        return bounds.expected_cross_entropy(
            self.resize(augmented, size),
            self.resize(logits, size),
            target.to(logits.dtype) if soft else target,
            class_weight=None if self.class_weight is None else self.class_weight.to(logits.dtype),
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )

    def cross_entropy(self, logits: Tensor, target: Tensor) -> Tensor:
        """What nn.CrossEntropyLoss gives, at the resolution of the targets."""
        soft = target.is_floating_point()
        return F.cross_entropy(
            self.resize(logits, target.shape[2:] if soft else target.shape[1:]),
            target,
            self.class_weight,
            ignore_index=-100 if soft else self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )

    def classes_second(
        self, logits: Tensor, target: Tensor, features: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Logits (N, C, ...), targets and features (N, A, ...): tokens (N, T, C) and channels last are moved."""
        features = logits if features is None else features
        last = features.ndim > 2 and features.shape[-1] == self.feature_dim and features.shape[1] != self.feature_dim
        if logits.ndim > 2 and logits.shape[-1] == self.num_classes and (last or logits.shape[1] != self.num_classes):
            last = features.ndim > 2
            target = target.movedim(-1, 1) if target.ndim == logits.ndim else target
            logits = logits.movedim(-1, 1)
        return logits, target, features.movedim(-1, 1) if last else features

    def labels_of(self, logits: Tensor, target: Tensor, features: Tensor) -> tuple[Tensor, Tensor | None]:
        """For each row of the features a label (N,), and whether it counts (N,); None if all do.

        Distributions are of their likeliest class. Labels finer than the features are those of the nearest pixel.
        """
        soft = target.is_floating_point()
        expected = logits.shape[:2] + target.shape[2:] if soft else logits.shape[:1] + target.shape[1:]
        if target.ndim != logits.ndim - (not soft) or target.shape != expected:
            kind = "distributions of the shape of" if soft else "class indices, one for each row of"
            raise ValueError(f"targets must be {kind} logits {tuple(logits.shape)}, got {describe(target)}")
        if target.numel() == 0:
            raise ValueError("targets must hold at least one label, got an empty batch")
        if features.ndim != logits.ndim:
            raise ValueError(f"features must have {logits.ndim} dimensions as the logits, got {describe(features)}")
        labels, grid = target.argmax(1) if soft else target, features.shape[2:]
        if labels.shape[1:] != grid:
            labels = F.interpolate(labels.unsqueeze(1).to(torch.float32), size=grid, mode="nearest").squeeze(1).long()
        labels = labels.flatten()
        counted = None if soft else labels != self.ignore_index
        return labels, None if counted is None or (on_host(counted) and counted.all()) else counted

    def extra_repr(self) -> str:
        """Show the settings in repr()."""
        return f"{super().extra_repr()}, bound={self.bound!r}"


def as_labels(target: Tensor) -> Tensor:
    """Class indices as int64; distributions as they are."""
    if not isinstance(target, Tensor):
        raise ValueError(f"targets must be a tensor, got {describe(target)}")
    integer = not (target.is_floating_point() or target.is_complex() or target.dtype == torch.bool)
    return target.long() if integer else target


def rows_of(tensor: Tensor) -> Tensor:
    """(N, D, ...) as rows (N, D), one for each pixel."""
    return tensor if tensor.ndim == 2 else tensor.movedim(1, -1).flatten(0, -2)
