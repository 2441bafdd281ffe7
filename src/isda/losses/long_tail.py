"""Losses for long-tailed data (docs/longtail.md): offsets of margins, shifts of means, and meta-learned covariances.

The augmented logits are z_j + lambda/2 (w_j - w_y)' Sigma_y (w_j - w_y) + alpha (w_j - w_y)' delta_y + o_yj: a
`MeanShift` provides delta, an `Offset` provides o. `MetaLearner` is MetaSAug (Li et al., CVPR 2021).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from isda._utils.checks import check_number
from isda.attach import find_classifier, weight_of
from isda.covariance import ConfusionCovariance, CovarianceModel, ScaledCovariance
from isda.functional.grouping import Groups
from isda.functional.long_tail import label_margins, mean_shift, prior_offsets
from isda.losses.inputs import LossInputs
from isda.losses.targets import resize_rows

if TYPE_CHECKING:
    from isda.losses.isda import ISDALoss

__all__ = ["ConfusionShift", "LDAMMargins", "LogitAdjustment", "MeanShift", "MetaLearner", "Offset", "meta_gradient"]


class Offset(nn.Module, ABC):
    """Offsets o_yj of the margins z_j - z_y, with o_yy = 0; subclasses define ``rows``."""

    num_classes: int

    @abstractmethod
    def rows(self, classes: Tensor) -> Tensor:
        """(K, C) o_yj for y = classes[k]."""


class OffsetTable(Offset):
    """Offsets that are known from the start, as a table (C, C) with a diagonal of zeros; no part of the state."""

    table: Tensor

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.num_classes = len(table)
        self.register_buffer("table", table, persistent=False)

    def rows(self, classes: Tensor) -> Tensor:
        """(K, C) rows of the table."""
        return self.table.index_select(0, classes)


class MeanShift(nn.Module, ABC):
    """Shifts delta_y of the features of a class, which are scaled by alpha; subclasses define ``vectors``.

    alpha grows with the strength lambda: it is the given one where lambda = lambda_0, and constant for lambda_0 = 0.
    """

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.alpha = check_number("alpha", alpha)

    @abstractmethod
    def vectors(self, covariance: CovarianceModel) -> Tensor:
        """(C, A) the shifts, from what the covariance model knows of the classes; no gradient flows into them."""

    def check(self, covariance: CovarianceModel) -> None:
        """Raise ValueError for a covariance model that does not know what is needed."""


def check_providers(offset: object, shift: object, covariance: CovarianceModel) -> None:
    """Refuse what provides no offsets or shifts, or not for these classes."""
    if not (offset is None or isinstance(offset, Offset)):
        raise ValueError(f"offset must be an isda.losses.long_tail.Offset, got {type(offset).__name__}")
    if offset is not None and offset.num_classes != covariance.num_classes:
        raise ValueError(f"offset must be for {covariance.num_classes} classes, got one for {offset.num_classes}")
    if not (shift is None or isinstance(shift, MeanShift)):
        raise ValueError(f"shift must be an isda.losses.long_tail.MeanShift, got {type(shift).__name__}")
    if shift is not None:
        shift.check(covariance)


def margin_terms(
    offset: Offset | None,
    shift: MeanShift | None,
    share: float,
    model: CovarianceModel,
    batch: LossInputs,
    groups: Groups,
    align_corners: bool,
) -> Tensor | None:
    """(N, C, ...) alpha (w_j - w_y)' delta_y + o_yj for the logits of a batch, or None where nothing is added.

    Args:
        offset: provider of o.
        shift: provider of delta.
        share: of the shift's alpha.
        model: what the shift is made from.
        batch: a call's input; the class y is that of a row of its features.
        groups: the rows by class.
        align_corners: how the terms are upsampled where logits are finer than features.
    """
    table = None if offset is None else offset.rows(groups.classes)
    if shift is not None and shift.alpha * share > 0:
        weight = model.as_statistics(batch.weight)
        moved = shift.alpha * share * mean_shift(weight, shift.vectors(model), groups.classes)
        table = moved if table is None else moved + table.to(moved.dtype)
    if table is None:
        return None
    terms = table if groups.one_slot_per_row else table.index_select(0, groups.slot)
    if batch.counts is not None:
        terms = terms * batch.counts.unsqueeze(1)  # an ignored pixel is mixed with its neighbours
    return resize_rows(terms, batch.grid, batch.logits, align_corners)


class LogitAdjustment(OffsetTable):
    """o_yj = tau (log pi_j - log pi_y), pi_c = n_c / n.

    Args:
        counts: (C,) training samples of each class.
        tau: 1 is consistent for the balanced error; 0 is no adjustment.

    Example:
        >>> import torch
        >>> LogitAdjustment([80, 20]).rows(torch.tensor([1]))  # log 4
        tensor([[1.3863, 0.0000]], dtype=torch.float64)
    """

    def __init__(self, counts: Tensor | Sequence[float], tau: float = 1.0) -> None:
        super().__init__(prior_offsets(counts, tau))
        self.tau = float(tau)

    def extra_repr(self) -> str:
        """Show the settings in repr()."""
        return f"tau={self.tau:g}"


class LDAMMargins(OffsetTable):
    """-s Delta_y on the logit of the own class, which is o_yj = s Delta_y for all others; Delta_c ~ n_c^(-1/4).

    The publication has logits s cos(angle) with s = 30; those of a plain linear classifier have a scale of their own,
    which is why s is 1 here. Its deferred re-weighting is ``criterion.class_weight``, set late in training to
    `isda.functional.class_balanced_weights` (docs/longtail.md).

    Args:
        counts: (C,) training samples of each class.
        max_margin: Delta of the smallest class.
        scale: s.

    Example:
        >>> LDAMMargins([10000, 1], max_margin=0.5).rows(torch.tensor([0, 1]))
        tensor([[0.0000, 0.0500],
                [0.5000, 0.0000]], dtype=torch.float64)
    """

    def __init__(self, counts: Tensor | Sequence[float], max_margin: float = 0.5, scale: float = 1.0) -> None:
        margins = check_number("scale", scale) * label_margins(counts, max_margin)
        others = 1 - torch.eye(len(margins), dtype=margins.dtype, device=margins.device)
        super().__init__(margins.unsqueeze(1) * others)
        self.max_margin, self.scale = float(max_margin), float(scale)

    def extra_repr(self) -> str:
        """Show the settings in repr()."""
        return f"max_margin={self.max_margin:g}, scale={self.scale:g}"


class ConfusionShift(MeanShift):
    """delta_y = sum_k g_yk mu_k - mu_y, g the confusions and mu the means that a ConfusionCovariance keeps.

    Args:
        alpha: how far, at full strength; the authors choose from 0.25 to 1.5.

    Example:
        >>> from isda import ISDALoss
        >>> from isda.covariance import FullCovariance
        >>> mixed = ConfusionCovariance(FullCovariance(num_classes=3, feature_dim=8))
        >>> criterion = ISDALoss(3, 8, lambda_0=0.5, covariance=mixed, shift=ConfusionShift(alpha=0.5))
    """

    def __init__(self, alpha: float = 0.5) -> None:
        super().__init__(alpha)

    def check(self, covariance: CovarianceModel) -> None:
        """Only a ConfusionCovariance knows confusions."""
        if not isinstance(covariance, ConfusionCovariance):
            raise ValueError(
                f"covariance must be a ConfusionCovariance for a ConfusionShift, got {type(covariance).__name__}"
            )

    @torch.no_grad()
    def vectors(self, covariance: CovarianceModel) -> Tensor:
        """(C, A)."""
        self.check(covariance)
        covariance = cast(ConfusionCovariance, covariance)
        mean = covariance.mean
        return covariance.graph @ mean - mean

    def extra_repr(self) -> str:
        """Show the settings in repr()."""
        return f"alpha={self.alpha:g}"


_BETA_1, _BETA_2, _EPSILON = 0.9, 0.999, 1e-8


class AdamMoments(nn.Module):
    """Running means of a gradient and of its square; torch's own optimisers keep theirs outside of a state_dict.

    Example:
        >>> tensor = torch.zeros(2)
        >>> AdamMoments(tensor).descend(tensor, torch.tensor([3.0, -0.1]), lr=0.5)
        >>> tensor
        tensor([-0.5000,  0.5000])
    """

    first: Tensor
    second: Tensor
    steps: Tensor

    def __init__(self, tensor: Tensor) -> None:
        super().__init__()
        self.register_buffer("first", torch.zeros_like(tensor, requires_grad=False))
        self.register_buffer("second", torch.zeros_like(tensor, requires_grad=False))
        self.register_buffer("steps", torch.zeros((), dtype=tensor.dtype, device=tensor.device))

    @torch.no_grad()
    def descend(self, tensor: Tensor, gradient: Tensor, lr: float) -> None:
        """Move the tensor one step down."""
        self.steps.add_(1)
        self.first.lerp_(gradient, 1 - _BETA_1)
        self.second.lerp_(gradient.square(), 1 - _BETA_2)
        mean = self.first / (1 - _BETA_1**self.steps)
        size = (self.second / (1 - _BETA_2**self.steps)).sqrt()
        tensor.sub_(lr * mean / (size + _EPSILON))


def meta_gradient(
    training_loss: Callable[[list[Tensor]], Tensor],
    meta_loss: Callable[[list[Tensor]], Tensor],
    parameters: Sequence[Tensor],
    learned: Tensor,
    rate: float,
    average: Callable[[Tensor], Tensor] = lambda tensor: tensor,
) -> Tensor:
    """The gradient d M(theta - rate g(s)) / ds of a meta loss M after one virtual step, g(s) = dL(theta, s) / dtheta.

    By the chain rule it is -rate d(g(s).v) / ds with v = dM / dtheta at the moved parameters held constant: g and v can
    be averaged over processes as they are, and the second derivative is one of the training loss alone.

    Args:
        training_loss: L, maps parameters to a scalar that depends on ``learned``.
        meta_loss: M, maps parameters to a scalar.
        parameters: theta.
        learned: s, a leaf that requires a gradient.
        rate: of the virtual step of gradient descent.
        average: the mean of a tensor over processes.

    Example:
        >>> theta, s = torch.tensor(1.0), torch.tensor(2.0, requires_grad=True)
        >>> meta_gradient(lambda p: s * p[0] ** 2, lambda p: p[0], [theta], s, rate=0.1)  # d(1 - 0.1 * 2 s) / ds
        tensor(-0.2000)
    """
    start = [parameter.detach().requires_grad_() for parameter in parameters]
    slopes = torch.autograd.grad(training_loss(start), start, create_graph=True, allow_unused=True)
    moved = [
        (parameter.detach() if slope is None else parameter.detach() - rate * average(slope.detach())).requires_grad_()
        for parameter, slope in zip(start, slopes, strict=True)
    ]
    pulls = torch.autograd.grad(meta_loss(moved), moved, allow_unused=True)
    pairs = [(g, v) for g, v in zip(slopes, pulls, strict=True) if g is not None and v is not None and g.requires_grad]
    if not pairs:
        return torch.zeros_like(learned)
    product = torch.stack([(slope * average(pull)).sum() for slope, pull in pairs]).sum()
    (gradient,) = torch.autograd.grad(product, learned, allow_unused=True)
    return torch.zeros_like(learned) if gradient is None else average(gradient).mul(-rate)


class MetaLearner(nn.Module):
    """Trains the scales of a criterion's ScaledCovariance by Adam on the loss of balanced batches after a virtual step.

    The scales are taken from every other optimiser: they no longer require a gradient. The state_dict holds Adam's
    moments (the scales are in the criterion's). Statistics of batch norm stay as they are.

    Args:
        criterion: with a ScaledCovariance.
        lr: learning rate of the logarithms of the scales.
        classifier: the network's last layer or its name, where it cannot be found by convention.

    Example:
        >>> from isda import ISDALoss
        >>> from isda.covariance import FullCovariance
        >>> model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
        >>> scaled = ScaledCovariance(FullCovariance(num_classes=3, feature_dim=4))
        >>> criterion = ISDALoss.attach(model, lambda_0=1.0, covariance=scaled)
        >>> learner = MetaLearner(criterion, lr=0.01)
        >>> x, y = torch.randn(8, 5), torch.tensor([0, 0, 0, 0, 0, 0, 1, 2])
        >>> criterion(model(x), y).backward()  # an ordinary step
        >>> learner.step(model, (x, y), (x[5:], y[5:]), rate=0.1)
        >>> bool(scaled.log_scale.any())
        True
    """

    def __init__(self, criterion: ISDALoss, lr: float = 0.003, *, classifier: nn.Module | str | None = None) -> None:
        super().__init__()
        covariance = _scaled(criterion)
        if criterion.bound != "jensen":
            raise ValueError(f'criterion must have bound="jensen", got {criterion.bound!r}')
        self.lr, self._classifier = check_number("lr", lr), (classifier,)
        covariance.log_scale.requires_grad_(False)
        self.moments = AdamMoments(covariance.log_scale)
        # In tuples, no parts of this module: the scales belong to the criterion, and so does their state.
        self._criterion = (criterion,)

    @property
    def criterion(self) -> ISDALoss:
        """The criterion whose covariance is trained."""
        return self._criterion[0]

    def gradient(
        self, network: nn.Module, batch: tuple[Tensor, Tensor], balanced: tuple[Tensor, Tensor], rate: float
    ) -> Tensor:
        """(C, A) the gradient, in the scales, of a balanced batch's cross-entropy after a virtual step on ``batch``.

        Args:
            network: maps inputs to logits and ends in the classifier; not wrapped.
            batch: inputs and labels (N,).
            balanced: inputs and labels (M,).
            rate: of the virtual step, usually the current learning rate.
        """
        criterion, covariance = self.criterion, _scaled(self.criterion)
        named = dict(network.named_parameters())
        head = weight_of(find_classifier(network, self._classifier[0]))
        position = next(index for index, parameter in enumerate(named.values()) if parameter is head)
        fixed = {name: buffer.clone() for name, buffer in network.named_buffers()}

        def logits_of(parameters: list[Tensor], inputs: Tensor) -> Tensor:
            given = dict(zip(named, parameters, strict=True))
            logits: Tensor = functional_call(network, {**given, **fixed}, (inputs,))
            return logits

        def training_loss(parameters: list[Tensor]) -> Tensor:
            logits = criterion.augmented_logits(logits_of(parameters, batch[0]), batch[1], weight=parameters[position])
            weight = criterion.class_weight
            return self._mean(
                F.cross_entropy(logits, batch[1], None if weight is None else weight.to(logits.dtype), reduction="none")
            )

        def meta_loss(parameters: list[Tensor]) -> Tensor:
            return self._mean(F.cross_entropy(logits_of(parameters, balanced[0]), balanced[1], reduction="none"))

        covariance.log_scale.requires_grad_(True)
        try:
            return meta_gradient(
                training_loss, meta_loss, list(named.values()), covariance.log_scale, rate, self._averaged
            )
        finally:
            covariance.log_scale.requires_grad_(False)
            criterion._clear_records()

    def step(
        self, network: nn.Module, batch: tuple[Tensor, Tensor], balanced: tuple[Tensor, Tensor], rate: float
    ) -> None:
        """One step of the scales; before the step of the network on the same batch. See ``gradient``.

        At strength 0 the covariances have no part in the loss, and nothing is done.
        """
        covariance = _scaled(self.criterion)
        if self.criterion.strength > 0:
            self.moments.descend(covariance.log_scale, self.gradient(network, batch, balanced, rate), self.lr)

    def _mean(self, losses: Tensor) -> Tensor:
        """The share of this process in the mean over the rows of all, times the number of processes."""
        world = self.criterion.covariance._world_size()
        if world == 1:
            return losses.mean()
        rows = torch.full((), float(len(losses)), device=losses.device)
        dist.all_reduce(rows, group=self.criterion.covariance.process_group)
        return losses.sum() * (world / rows)

    def _averaged(self, tensor: Tensor) -> Tensor:
        world = self.criterion.covariance._world_size()
        if world == 1:
            return tensor
        tensor = tensor.clone()
        dist.all_reduce(tensor, group=self.criterion.covariance.process_group)
        return tensor / world

    def extra_repr(self) -> str:
        """Show the settings in repr()."""
        return f"lr={self.lr:g}"


def _scaled(criterion: ISDALoss) -> ScaledCovariance:
    """The covariance of a criterion, which must have scales to train."""
    covariance = criterion.covariance
    if not isinstance(covariance, ScaledCovariance):
        raise ValueError(f"criterion must have a ScaledCovariance, got {type(covariance).__name__}")
    return covariance
