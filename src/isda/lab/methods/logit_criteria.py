"""Losses of logits and labels: label smoothing, DisturbLabel, focal loss and L_q loss.

`SampleLoss`, their base, takes the cross-entropy of each sample from another criterion, such as ISDA's bound.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isda._utils import checks
from isda._utils.choices import check_choice
from isda._utils.devices import on_host
from isda.losses.targets import REDUCTIONS, reduce_losses, widen


def check_rows(logits: Tensor, targets: Tensor) -> None:
    """Logits (N, C) of at least one sample and class indices (N,); their range is looked at on the CPU only."""
    if logits.ndim != 2 or logits.numel() == 0:
        raise ValueError(f"logits must have shape (N, C) with at least one sample, got {checks.shape_of(logits)}")
    checks.check_floating_point("logits", logits)
    checks.check_labels_dtype(targets)
    if targets.shape != logits.shape[:1]:
        raise ValueError(f"targets must have shape ({len(logits)},) to match logits, got {checks.shape_of(targets)}")
    message = checks.label_error(targets, logits.shape[1]) if on_host(targets) else None
    if message is not None:
        raise ValueError(message)


def check_features(logits: Tensor, features: Tensor, weight: Tensor | None = None, dim: int | None = None) -> None:
    """Features (N, A) that belong to logits (N, C), and the weight (C, A) that makes the one from the other."""
    dim = features.shape[-1] if dim is None else dim
    checks.check_shape("features", features, (len(logits), dim))
    checks.check_floating_point("features", features)
    if weight is not None:
        checks.check_shape("weight", weight, (logits.shape[1], dim))


def own_logits(logits: Tensor, targets: Tensor) -> Tensor:
    """(N,) the logit of each sample's label."""
    return logits.gather(1, targets.long().unsqueeze(1)).squeeze(1)


class SampleLoss(nn.Module):
    """A loss that is made from the cross-entropy -log p_y of each sample.

    Args:
        reduction: mean, sum or none.
        cross_entropy: what gives (N,) cross-entropies of logits (N, C) and labels (N,); plain by default. Give
            ``ISDALoss.attach(model, ..., reduction="none")`` for ISDA's upper bound of their expectation.
        linear: whether the loss adds to the cross-entropies. One that bends them cannot take a penalty for one.
    """

    shown: tuple[str, ...] = ()
    """The settings in repr()."""

    def __init__(self, *, reduction: str = "mean", cross_entropy: nn.Module | None = None, linear: bool = True) -> None:
        super().__init__()
        self.reduction = check_choice("reduction", reduction, REDUCTIONS)
        if cross_entropy is not None:
            _check_sample_criterion(cross_entropy, linear=linear)
        self.cross_entropy = cross_entropy

    def extra_repr(self) -> str:
        """Show the settings in repr()."""
        return ", ".join(f"{name}={getattr(self, name):g}" for name in self.shown)

    def rows(self, logits: Tensor, targets: Tensor) -> Tensor:
        """(N,) cross-entropies, in at least float32."""
        if self.cross_entropy is None:
            return F.cross_entropy(widen(logits), targets.long(), reduction="none")
        return widen(self.cross_entropy(logits, targets))


def _check_sample_criterion(criterion: Any, *, linear: bool) -> None:
    """Refuse a criterion that gives something else than one cross-entropy per sample."""
    expected = {"reduction": "none", "label_smoothing": 0.0, "class_weight": None, "weight": None}
    for name, value in expected.items():
        if getattr(criterion, name, value) != value:
            raise ValueError(
                f"cross_entropy must have {name}={value!r} to be one cross-entropy for each sample, got "
                f"{name}={getattr(criterion, name)!r}"
            )
    if linear or not hasattr(criterion, "covariance"):
        return
    with torch.no_grad():
        penalty = criterion.covariance.penalty()
    if penalty is not None:
        raise ValueError("cross_entropy must add no uncertainty loss here: uncertainty_weight must be 0")


class LabelSmoothing(SampleLoss):
    """-sum_c q_c log p_c with q = (1 - smoothing) one-hot(y) + smoothing / C; smoothing 0 is cross-entropy to the bit.

    In terms of the cross-entropy it is -log p_y + smoothing (z_y - mean_c z_c), and so it is for ISDA's bound of it.

    Args:
        smoothing: 0..1, the share of the target that is spread over all classes.
        reduction: mean, sum or none.
        cross_entropy: ``ISDALoss.attach(model, ..., reduction="none")`` puts its bound in place of -log p_y; the same
            as ``ISDALoss(label_smoothing=smoothing)``.

    Shape:
        logits (N, C), targets (N,); a scalar, or (N,) for reduction none.

    Example:
        >>> import torch
        >>> LabelSmoothing()(torch.zeros(2, 4), torch.tensor([0, 3]))  # log 4
        tensor(1.3863)
    """

    shown = ("smoothing",)

    def __init__(
        self, smoothing: float = 0.1, *, reduction: str = "mean", cross_entropy: nn.Module | None = None
    ) -> None:
        super().__init__(reduction=reduction, cross_entropy=cross_entropy)
        self.smoothing = checks.check_number("smoothing", smoothing, high=1.0)

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss."""
        check_rows(logits, targets)
        if self.cross_entropy is None:
            return F.cross_entropy(
                widen(logits), targets.long(), reduction=self.reduction, label_smoothing=self.smoothing
            )
        rows, plain = self.rows(logits, targets), widen(logits)
        return reduce_losses(rows + self.smoothing * (own_logits(plain, targets) - plain.mean(1)), self.reduction)


def disturb_labels(targets: Tensor, num_classes: int, rate: float, generator: torch.Generator | None = None) -> Tensor:
    """(N,) labels, each drawn anew: y with probability 1 - (C-1)/C rate, every other class with rate / C.

    That is: with probability ``rate`` a label is replaced by one drawn evenly from all classes, itself included.

    Args:
        targets: (N,) class indices y.
        num_classes: C.
        rate: the noise rate alpha, 0..1.
        generator: of the draws; torch's own by default.

    Example:
        >>> disturb_labels(torch.tensor([2, 0, 1]), num_classes=3, rate=0.0)
        tensor([2, 0, 1])
    """
    shape, device = targets.shape, targets.device
    replaced = torch.rand(shape, generator=generator, device=device) < rate
    others = torch.randint(num_classes, shape, generator=generator, device=device, dtype=targets.dtype)
    return torch.where(replaced, others, targets)


class DisturbLabel(SampleLoss):
    """Cross-entropy with labels drawn anew in each training step; in eval mode it is plain cross-entropy.

    On top of ISDA a sample keeps the covariance of its true class and the bound's own pivot; what is disturbed is the
    label that the loss aims at: bound + z_y - z_y' with the drawn label y'. On average over the draws that is label
    smoothing on top of ISDA.

    Args:
        rate: the noise rate alpha; the ISDA paper takes 0.05, and 0.1 for ResNet-110 on CIFAR-100.
        reduction: mean, sum or none.
        cross_entropy: ``ISDALoss.attach(model, ..., reduction="none")`` puts its bound in place of -log p_y.

    Shape:
        logits (N, C), targets (N,); a scalar, or (N,) for reduction none.

    Example:
        >>> DisturbLabel(rate=0.5)(torch.zeros(2, 4), torch.tensor([0, 3]))  # log 4, whatever the labels
        tensor(1.3863)
    """

    shown = ("rate",)

    def __init__(self, rate: float = 0.05, *, reduction: str = "mean", cross_entropy: nn.Module | None = None) -> None:
        super().__init__(reduction=reduction, cross_entropy=cross_entropy)
        self.rate = checks.check_number("rate", rate, high=1.0)

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss; the draws are torch's next ones on the device of the targets."""
        check_rows(logits, targets)
        aims = disturb_labels(targets, logits.shape[1], self.rate) if self.training else targets
        if self.cross_entropy is None:
            return F.cross_entropy(widen(logits), aims.long(), reduction=self.reduction)
        rows, plain = self.rows(logits, targets), widen(logits)
        return reduce_losses(rows + own_logits(plain, targets) - own_logits(plain, aims), self.reduction)


def focal_rows(cross_entropy: Tensor, alpha: float = 0.5, gamma: float = 1.0) -> Tensor:
    """Alpha (1 - p)^gamma * cross-entropy, with p = exp(-cross-entropy), for each entry.

    Example:
        >>> focal_rows(torch.tensor([0.6931472]))  # p = 1/2
        tensor([0.1733])
    """
    if gamma == 0:
        return alpha * cross_entropy
    # Away from 0, where the derivative of a power below 1 is infinite and would meet a cross-entropy of 0.
    missed = (-torch.expm1(-cross_entropy)).clamp_min(torch.finfo(cross_entropy.dtype).tiny)
    return alpha * missed**gamma * cross_entropy


class FocalLoss(SampleLoss):
    """-alpha (1 - p_y)^gamma log p_y; gamma = 0 is alpha times cross-entropy.

    Args:
        alpha: factor on the whole loss; the ISDA paper chooses 0.5.
        gamma: how much less an easy sample weighs; the ISDA paper chooses 1, Lin et al. 2.
        reduction: mean, sum or none.
        cross_entropy: ``ISDALoss.attach(model, ..., reduction="none")`` puts its bound in place of -log p_y.

    Shape:
        logits (N, C), targets (N,); a scalar, or (N,) for reduction none.

    Example:
        >>> criterion = FocalLoss(gamma=0.0, alpha=1.0)
        >>> criterion(torch.zeros(2, 4), torch.tensor([0, 3]))  # log 4
        tensor(1.3863)
    """

    shown = ("alpha", "gamma")

    def __init__(
        self,
        alpha: float = 0.5,
        gamma: float = 1.0,
        *,
        reduction: str = "mean",
        cross_entropy: nn.Module | None = None,
    ) -> None:
        super().__init__(reduction=reduction, cross_entropy=cross_entropy, linear=False)
        self.alpha, self.gamma = checks.check_number("alpha", alpha), checks.check_number("gamma", gamma)

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss."""
        check_rows(logits, targets)
        return reduce_losses(focal_rows(self.rows(logits, targets), self.alpha, self.gamma), self.reduction)


def lq_rows(cross_entropy: Tensor, q: float = 0.4) -> Tensor:
    """(1 - p^q) / q with p = exp(-cross-entropy), for each entry; the cross-entropy itself for q = 0.

    Example:
        >>> lq_rows(torch.tensor([0.6931472]), q=1.0)  # p = 1/2
        tensor([0.5000])
    """
    numbers = torch.finfo(cross_entropy.dtype)
    if q < numbers.tiny / numbers.eps:
        # What q * cross-entropy would underflow for is beyond the precision of the result.
        return cross_entropy
    exponent = -q * cross_entropy
    # The derivative p^q is 1 + expm1 in torch, which is no number to speak of for a tiny p; exp has it exactly.
    return torch.where(exponent > -1, -torch.expm1(exponent), 1 - torch.exp(exponent)) / q


class LqLoss(SampleLoss):
    """(1 - p_y^q) / q; q -> 0 is cross-entropy.

    Args:
        q: 0..1; the ISDA paper chooses 0.4, Zhang and Sabuncu 0.7.
        reduction: mean, sum or none.
        cross_entropy: ``ISDALoss.attach(model, ..., reduction="none")`` puts its bound in place of -log p_y.

    Shape:
        logits (N, C), targets (N,); a scalar, or (N,) for reduction none.

    Example:
        >>> LqLoss(q=1.0)(torch.zeros(2, 4), torch.tensor([0, 3]))  # 1 - 1/4
        tensor(0.7500)
    """

    shown = ("q",)

    def __init__(self, q: float = 0.4, *, reduction: str = "mean", cross_entropy: nn.Module | None = None) -> None:
        super().__init__(reduction=reduction, cross_entropy=cross_entropy, linear=False)
        self.q = checks.check_number("q", q, high=1.0)

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss."""
        check_rows(logits, targets)
        return reduce_losses(lq_rows(self.rows(logits, targets), self.q), self.reduction)
