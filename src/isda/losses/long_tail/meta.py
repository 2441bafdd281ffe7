"""Covariances trained by the loss on balanced batches (MetaSAug, Li et al., CVPR 2021): second-order gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from isda.attach import find_classifier
from isda.covariance import ScaledCovariance
from isda.losses.long_tail.moments import AdaptiveMoments
from isda.recording import weight_of

if TYPE_CHECKING:
    from isda.losses.isda import ISDALoss

__all__ = ["MetaLearner", "meta_gradient"]


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
        if not 0 <= lr < float("inf"):
            raise ValueError(f"lr must be a finite number >= 0, got {lr!r}")
        self.lr, self._classifier = float(lr), (classifier,)
        covariance.log_scale.requires_grad_(False)
        self.moments = AdaptiveMoments(covariance.log_scale)
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
        place = next(index for index, parameter in enumerate(named.values()) if parameter is head)
        fixed = {name: buffer.clone() for name, buffer in network.named_buffers()}

        def logits_of(parameters: list[Tensor], inputs: Tensor) -> Tensor:
            given = dict(zip(named, parameters, strict=True))
            logits: Tensor = functional_call(network, {**given, **fixed}, (inputs,))
            return logits

        def training_loss(parameters: list[Tensor]) -> Tensor:
            logits = criterion.augmented_logits(logits_of(parameters, batch[0]), batch[1], weight=parameters[place])
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
            criterion._forget_recorded()

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
